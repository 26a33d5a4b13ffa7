"""Every knob of a paceline cluster, once: unit, range, default and why.

One YAML file describes one cluster and is the same for a laptop, a Serve
application and the Helm chart. A component takes its own section and nothing
else. This file only says what a single value may be; what values mean together
is judged in `configs/checks`, which can name file, key and reason.
"""

from pydantic import Field

from configs.sections.drafting import DraftingConfig
from configs.sections.kv import KvConfig, RedisConfig
from configs.sections.places import FoldersConfig, PortsConfig, RayConfig
from configs.sections.routing import FrontDoorConfig, RouterConfig
from configs.sections.scaling import AutoscalingConfig
from configs.sections.values import Name, Section
from configs.sections.verifiers import HardwareConfig, ModelConfig, VerifierConfig


class ClusterConfig(Section):
    """One paceline cluster."""

    name: Name = Field("paceline", description="Names the Serve application and the run folder.")
    model: ModelConfig
    hardware: HardwareConfig = HardwareConfig()
    verifiers: VerifierConfig = VerifierConfig()
    drafting: DraftingConfig = DraftingConfig()
    kv: KvConfig = KvConfig()
    autoscaling: AutoscalingConfig | None = None
    redis: RedisConfig = RedisConfig()
    ray: RayConfig = RayConfig()
    router: RouterConfig = RouterConfig()
    front_door: FrontDoorConfig = FrontDoorConfig()
    ports: PortsConfig = PortsConfig()
    # Made anew each time: its defaults depend on who runs this.
    folders: FoldersConfig = Field(default_factory=FoldersConfig)

    @property
    def runs_on_this_machine(self) -> bool:
        """Whether this is the whole cluster's machine: its private Redis is on loopback."""
        return self.redis.url is None

    @property
    def most_verifiers(self) -> int:
        """How many verifiers there may come to be."""
        return self.autoscaling.max_verifiers if self.autoscaling else self.verifiers.replicas

    @property
    def most_draft_workers(self) -> int:
        """How many draft workers there may come to be; 0 without split drafting."""
        split, scaling = self.drafting.split, self.autoscaling
        if split is None:
            return 0
        return (scaling.max_draft_workers if scaling else None) or split.workers.replicas

    @property
    def may_use_head(self) -> bool:
        """Whether verifiers and draft workers may run on Ray's head node."""
        if self.ray.on_head is None:
            return self.ray.address is None and self.runs_on_this_machine
        return self.ray.on_head

    @property
    def rank_in_engine(self) -> bool:
        """Whether a verifier's only rank runs inside its engine."""
        return self.hardware.kind == "cpu" and self.verifiers.rank_in_engine

    @property
    def shown_header(self) -> str:
        """The one request header that the router sees."""
        return self.router.shown_header or (
            "authorization" if self.front_door.keys else "x-session-id"
        )

    @property
    def block_tokens(self) -> int:
        """Tokens of one KV block: what the config says, or the default of its platform."""
        return self.verifiers.kv_cache.block_size or (32 if self.hardware.kind == "cpu" else 16)
