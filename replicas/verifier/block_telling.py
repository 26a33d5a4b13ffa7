"""Has the engine tell of its KV blocks, and a relay tell the routers.

Everything of it is a hint: where it can't be set up, the verifier answers as ever, and routers
count it as cold.
"""

import asyncio
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

from vllm.config.kv_events import KVEventsConfig

from configs.schema import ClusterConfig
from kvstore.cluster_token import cluster_token
from kvstore.errors import NoClusterToken
from kvstore.hashing import Naming
from kvstore.kv_messages import KvCodec
from replicas.draft.listening import advertised_host
from replicas.verifier.engine_events import EngineSource
from replicas.verifier.kv_relay import KvRelay, RelaySettings
from replicas.verifier.telemetry import VerifierTelemetry

logger = logging.getLogger(__name__)

TOPIC = "kv"


class BlockTelling:
    """Owns the relay of one verifier, and the folder of the sockets between engine and relay.

    Args:
        config: The cluster, with `router.policy: prefix_aware`.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        # Made for this user alone: the engine's events carry prompts.
        self._folder = Path(tempfile.mkdtemp(prefix="kv-"))
        self._relay: KvRelay | None = None

    def engine_config(self) -> KVEventsConfig:
        """What vLLM is told."""
        return KVEventsConfig(
            enable_kv_cache_events=True,
            publisher="zmq",
            endpoint=f"ipc://{self._folder}/events",
            replay_endpoint=f"ipc://{self._folder}/replay",
            topic=TOPIC,
        )

    async def start(
        self, client: Any, weights_fingerprint: str, node_ip: str, telemetry: VerifierTelemetry
    ) -> None:
        """Begins to relay, and has the telemetry say where.

        Args:
            client: vLLM's engine client, up.
            weights_fingerprint: Which weights are loaded.
            node_ip: Address of this node.
            telemetry: Of this verifier.
        """
        try:
            token = await asyncio.to_thread(cluster_token, self._config)
        except NoClusterToken as error:
            logger.warning("kv relay=off error=%s", error)
            return
        ports = self._config.ports
        sources = client.get_kv_event_sources()
        if len(sources) != 1:
            logger.warning("kv relay=off engines=%d", len(sources))
            return
        (source,) = sources.values()
        block_tokens = client.vllm_config.cache_config.block_size
        relay = KvRelay(
            EngineSource(source.endpoint, source.replay_endpoint, source.topic),
            RelaySettings(
                ports.host, advertised_host(ports.host, node_ip), ports.kv_from, ports.kv_to
            ),
            Naming(weights_fingerprint, block_tokens),
            KvCodec(token),
            telemetry.load_report,
        )
        endpoint = relay.start()
        if endpoint:
            self._relay = relay
            telemetry.relays_blocks_at(endpoint, block_tokens)
            logger.info("kv relay=on endpoint=%s block_tokens=%d", endpoint, block_tokens)

    async def close(self) -> None:
        """Stops, and removes the folder."""
        if self._relay is not None:
            await asyncio.to_thread(self._relay.close)
        await asyncio.to_thread(shutil.rmtree, self._folder, True)


def tells_blocks(config: ClusterConfig) -> bool:
    """Whether there is a router that wants to know, and anything to tell."""
    return config.router.policy == "prefix_aware" and config.verifiers.kv_cache.prefix_caching
