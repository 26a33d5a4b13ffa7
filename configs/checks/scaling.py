"""Can a cluster of this size scale, and join the nodes it is to run on?"""

from collections.abc import Iterator

from configs.checks.rule import Finding
from configs.facts import Facts
from configs.schema import ClusterConfig

LOOPBACK = ("127.0.0.1", "localhost")


def most_is_not_fewer(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """The largest number is not below the smallest."""
    scaling, split = config.autoscaling, config.drafting.split
    if scaling is None:
        return
    if scaling.max_verifiers < config.verifiers.replicas:
        yield Finding(
            "autoscaling.max_verifiers",
            f"{scaling.max_verifiers} is below verifiers.replicas {config.verifiers.replicas}, the "
            "fewest; raise it, or lower that",
        )
    most = scaling.max_draft_workers
    if most is None:
        return
    if split is None:
        yield Finding(
            "autoscaling.max_draft_workers",
            "is for drafting.split, which there is not; remove it or add that",
        )
    elif most < split.workers.replicas:
        yield Finding(
            "autoscaling.max_draft_workers",
            f"{most} is below drafting.split.workers.replicas {split.workers.replicas}, the "
            "fewest; raise it, or lower that",
        )


def letting_go_waits(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """What has just been started is not let go by arrivals from before it was there."""
    scaling = config.autoscaling
    if scaling is not None and scaling.keep_s < scaling.window_s:
        yield Finding(
            "autoscaling.keep_s",
            f"{scaling.keep_s:g} s is shorter than autoscaling.window_s, {scaling.window_s:g} s, "
            "so that the same arrivals could start a verifier and stop it; raise it to that at "
            "least",
        )


def joined_nodes_reach_redis(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """Nodes of another machine's Ray cluster don't see the private Redis, on loopback."""
    address = config.ray.address
    if address and config.redis.url is None and address.rpartition(":")[0] not in LOOPBACK:
        yield Finding(
            "redis.url",
            f"is needed with ray.address {address}: the private Redis is on this machine's "
            "loopback; name a server that all nodes reach",
        )


def token_has_a_cluster(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """A Ray cluster that `paceline up` starts gets a token of its own."""
    if config.ray.token and config.ray.address is None:
        yield Finding(
            "ray.token",
            "is for a Ray cluster that runs already, but there is no ray.address; remove one or "
            "add the other",
        )


RULES = (most_is_not_fewer, letting_go_waits, joined_nodes_reach_redis, token_has_a_cluster)
