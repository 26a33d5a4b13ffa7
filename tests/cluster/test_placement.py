"""Which Ray nodes may hold verifiers and draft workers."""

from typing import Any

from cluster.placement import ACCELERATOR_LABEL, HEAD_RESOURCE, near_verifiers, selector
from replicas.zone import ZONE_LABEL


def node(name: str, head: bool = False, alive: bool = True) -> dict[str, Any]:
    """As `ray.nodes()` has it."""
    resources = {"CPU": 8.0} | ({HEAD_RESOURCE: 1.0} if head else {})
    return {"NodeID": name, "Alive": alive, "Resources": resources, "Labels": {}}


def test_all_nodes_but_the_head() -> None:
    """The head is left out by its id, a dead one of before is not looked at."""
    nodes = [node("old", head=True, alive=False), node("h", head=True), node("w1"), node("w2")]
    assert selector(False, nodes) == {"ray.io/node-id": "!h"}


def test_where_the_head_may_be_used_nothing_is_asked_of_nodes() -> None:
    """Nor where no head is known."""
    assert selector(True, [node("h", head=True)]) == {}
    assert selector(False, [node("w1")]) == {}
    assert selector(False, []) == {}


def with_gpu(kind: str, zone: str) -> dict[str, Any]:
    """A node with accelerators."""
    return node(zone) | {"Labels": {ACCELERATOR_LABEL: kind, ZONE_LABEL: zone}}


NODES = [with_gpu("H100", "b"), with_gpu("H100", "a"), with_gpu("L4", "c"), node("cpu")]
NOT_HEAD = {"ray.io/node-id": "!h"}


def test_draft_workers_without_an_accelerator_go_where_verifiers_are() -> None:
    """To their nodes, else to their zones, else anywhere but to the head."""
    assert near_verifiers(NOT_HEAD, "H100", False, NODES) == [
        NOT_HEAD | {ACCELERATOR_LABEL: "H100"},
        NOT_HEAD | {ZONE_LABEL: "in(a,b)"},
        NOT_HEAD,
    ]


def test_draft_workers_with_an_accelerator_go_to_the_zones_of_verifiers() -> None:
    """On other nodes; where no zone is known, anywhere."""
    assert near_verifiers({}, "H100", True, NODES) == [{ZONE_LABEL: "in(a,b)"}, {}]
    assert near_verifiers({}, "H100", True, []) == [{}]


def test_on_cpus_every_node_is_near() -> None:
    """Verifiers may be on all of them."""
    assert near_verifiers(NOT_HEAD, None, False, NODES) == [NOT_HEAD]
