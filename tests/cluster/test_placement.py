"""Which Ray nodes may hold verifiers and draft workers."""

from typing import Any

from cluster.placement import HEAD_RESOURCE, selector


def node(name: str, head: bool = False, alive: bool = True) -> dict[str, Any]:
    """As `ray.nodes()` has it."""
    resources = {"CPU": 8.0} | ({HEAD_RESOURCE: 1.0} if head else {})
    return {"NodeID": name, "Alive": alive, "Resources": resources}


def test_all_nodes_but_the_head() -> None:
    """The head is left out by its id, a dead one of before is not looked at."""
    nodes = [node("old", head=True, alive=False), node("h", head=True), node("w1"), node("w2")]
    assert selector(False, nodes) == {"ray.io/node-id": "!h"}


def test_where_the_head_may_be_used_nothing_is_asked_of_nodes() -> None:
    """Nor where no head is known."""
    assert selector(True, [node("h", head=True)]) == {}
    assert selector(False, [node("w1")]) == {}
    assert selector(False, []) == {}
