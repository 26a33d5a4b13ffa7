"""On which Ray nodes verifiers and draft workers run: label selectors for Ray.

Ray puts the ranks of a verifier on one node where they fit, and on several where they don't
(strategy PACK), and each verifier on the node that has the most room, so that verifiers spread.
Draft workers are spread over nodes by Serve; a verifier asks the nearest
(`replicas/verifier/placement.py`).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

NODE_LABEL: Final = "ray.io/node-id"
HEAD_RESOURCE: Final = "node:__internal_head__"
STRATEGY: Final = "PACK"


def selector(may_use_head: bool, nodes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Labels of the nodes that may be used; empty: all.

    Args:
        may_use_head: Whether Ray's head is one of them.
        nodes: As `ray.nodes()` says.
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
