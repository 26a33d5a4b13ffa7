"""Which zone this process's node is in, by the label that Ray gives nodes."""

import ray

ZONE_LABEL = "ray.io/availability-zone"


def own_zone() -> str:
    """The zone; empty where the node has no such label, or where Ray does not run."""
    if not ray.is_initialized():  # asking would start one
        return ""
    return str(ray.get_runtime_context().get_node_labels().get(ZONE_LABEL, ""))
