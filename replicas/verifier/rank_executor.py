"""Our seam into vLLM's Ray executor: ranks on the CPUs of several nodes.

vLLM starts the ranks of a GPU verifier as Ray actors, wherever Ray put their bundles. For CPUs it
has only an executor that starts them all on the engine's own node. Where one node has too few
cores, Ray puts the bundles on several, and then the executor for GPUs is taken, with what it asks
of GPUs left out. It lives in the engine's process, `CpuRank` in an actor for each rank.
"""

from typing import Any

import ray
from ray.util import placement_group_table
from ray.util.placement_group import PlacementGroup
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.v1.executor import ray_executor_v2
from vllm.v1.executor.ray_executor_v2 import RayExecutorV2, RayWorkerProc


def is_on_several_nodes(group: PlacementGroup | None) -> bool:
    """Whether the bundles of a placement group, which is ready, are on several nodes."""
    if group is None:
        return False
    return len(set(placement_group_table(group)["bundles_to_node_id"].values())) > 1


class CpuRank(RayWorkerProc):  # type: ignore[misc]
    """One rank, in an actor of its own."""

    def get_node_and_physical_gpu_ids(self) -> tuple[str, list[int]]:
        """Where it is, and that it has no GPU."""
        return ray.get_runtime_context().get_node_id(), []

    def initialize_worker(self, *args: Any, **kwargs: Any) -> None:
        """As vLLM's, but ranks talk by network: it would take two nodes' memory for one."""
        CpuCommunicator._all_group_ranks_share_shm_group_name = lambda _: False
        super().initialize_worker(*args, **kwargs)


class NodesExecutor(RayExecutorV2):  # type: ignore[misc]
    """Runs the ranks of a verifier where their bundles are."""

    def _init_executor(self) -> None:
        ray_executor_v2.initialize_ray_cluster = _join_ray
        ray_executor_v2.get_bundles_sorted_by_node = _bundles_by_node
        ray_executor_v2.RayWorkerProc = CpuRank
        super()._init_executor()

    @staticmethod
    def _get_actor_resource_kwargs() -> dict[str, Any]:
        return {}


def _join_ray(parallel_config: Any, **_: Any) -> None:
    """Connects the engine's process; its environment says where to."""
    if not ray.is_initialized():
        ray.init(runtime_env=parallel_config.ray_runtime_env)


def _bundles_by_node(group: PlacementGroup) -> list[tuple[int, str, str]]:
    """(bundle, node, address) of each rank: those of the engine's node first, then node by node."""
    addresses = {n["NodeID"]: n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"]}
    here = ray.get_runtime_context().get_node_id()
    bundles = placement_group_table(group)["bundles_to_node_id"]
    return sorted(
        ((bundle, node, addresses[node]) for bundle, node in bundles.items()),
        key=lambda found: (found[1] != here, found[1], found[0]),
    )
