"""On which Ray nodes verifiers and draft workers run: label selectors for Ray.

Ray puts the ranks of a verifier on one node where they fit, and on several where they don't
(strategy PACK), and each verifier on the node that has the most room, so that verifiers spread.
Serve spreads draft workers over those nodes that verifiers run on, where they need no
accelerator of their own; else over the zones where such nodes are; else over all. Then a verifier
asks the nearest (`replicas/verifier/placement.py`).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from replicas.zone import ZONE_LABEL

NODE_LABEL: Final = "ray.io/node-id"
HEAD_RESOURCE: Final = "node:__internal_head__"
ACCELERATOR_LABEL: Final = "ray.io/accelerator-type"
"""Ray sees itself what a node has."""
STRATEGY: Final = "PACK"

Nodes = Iterable[Mapping[str, Any]]
"""As `ray.nodes()` says."""
Labels = dict[str, str]


def selector(may_use_head: bool, nodes: Nodes) -> Labels:
    """Labels of the nodes that may be used; empty: all.

    Args:
        may_use_head: Whether Ray's head is one of them.
        nodes: Of the cluster.
    """
    if may_use_head:
        return {}
    heads = [
        str(node["NodeID"])
        for node in nodes
        if node["Alive"] and HEAD_RESOURCE in node["Resources"]
    ]
    # A cluster has one head.
    return {NODE_LABEL: f"!{heads[0]}"} if heads else {}


def near_verifiers(
    labels: Labels, accelerator: str | None, has_own: bool, nodes: Nodes
) -> list[Labels]:
    """Labels of the nodes for draft workers, the best first; where none is free, the next count.

    Args:
        labels: Of the nodes that may be used at all.
        accelerator: Of verifiers; None where they run on CPUs, on any node.
        has_own: Whether a draft worker needs an accelerator itself.
        nodes: Of the cluster.
    """
    if accelerator is None:
        return [labels]
    zones = {
        node["Labels"].get(ZONE_LABEL, "")
        for node in nodes
        if node["Alive"] and node["Labels"].get(ACCELERATOR_LABEL) == accelerator
    } - {""}
    return [
        *([labels | {ACCELERATOR_LABEL: accelerator}] if not has_own else []),
        *([labels | {ZONE_LABEL: f"in({','.join(sorted(zones))})"}] if zones else []),
        labels,
    ]
