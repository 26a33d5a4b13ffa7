"""A draft worker outside of Serve, which a test can stop, kill, or have lie.

    python outside_worker.py CONFIG.yaml WORKER_ID [--lie KIND] [--behind tcp://host:port]
                             [--protocols N] [--tokenizer FINGERPRINT]

Runs the real service under the line's own token and announces it in the line's registry,
until it is ended. With `--behind`, verifiers are told another address: a proxy's.
"""

import argparse
import asyncio
import os
import random
import time
from pathlib import Path

import msgspec
import numpy as np

from cluster.models import resolve_source
from configs import load_config
from kvstore.cluster_token import cluster_token
from kvstore.draft_report import DraftWorkerReport
from kvstore.heartbeat import Heartbeat
from kvstore.redis_client import redis_settings
from kvstore.registry import Registry
from replicas.draft.drafters import make_drafters
from replicas.draft.service import DraftService
from replicas.draft.worker import fingerprint_of, report_of, service_settings
from replicas.messages import PROTOCOL, AskBatch, Codec, Draft, DraftBatch, pack_tokens

LIES = ("wrong", "vocabulary", "foreign", "length", "garbage", "oversized", "version", "unsigned")
"""What a worker can be told to do instead of drafting; `wrong` alone is no lie: bad drafts."""


class LyingService(DraftService):
    """Answers, but not what is true."""

    lie = "wrong"

    def _answer(self, peer: bytes, batch: AskBatch, outdated: set[int]) -> DraftBatch:
        honest = super()._answer(peer, batch, outdated)
        return DraftBatch(honest.step, [self._twisted(d) for d in honest.drafts], honest.unknown)

    def _twisted(self, draft: Draft) -> Draft:
        tokens = np.full(8, random.randrange(1000), dtype=np.int32)
        session, base = draft.session, draft.base
        if self.lie == "vocabulary":
            tokens[-1] = self._settings.vocab_size
        elif self.lie == "foreign":
            session += 1_000_000
        elif self.lie == "length":
            base += 7
        return Draft(session, base, pack_tokens(tokens), draft.source)


class LyingCodec(Codec):
    """Packs frames that can't be believed."""

    lie = "garbage"

    def pack(self, message: AskBatch | DraftBatch, version: int = PROTOCOL) -> list[bytes]:
        if self.lie == "garbage":
            return [random.randbytes(20), random.randbytes(200)]
        if self.lie == "oversized":
            return [super().pack(message)[0], bytes(8 << 20)]
        if self.lie == "version":
            return super().pack(message, version=9)
        return Codec(b"another token, as long").pack(message)


async def serve(args: argparse.Namespace) -> None:
    """Serves and announces until the test that started it is gone."""
    config, lie = load_config(args.config), args.lie
    source = resolve_source(config.model.source, config.folders.models)
    settings = service_settings(config, source, "127.0.0.1")
    token = cluster_token(config)
    codec, kind = Codec(token), DraftService
    if lie in ("wrong", "vocabulary", "foreign", "length"):
        kind = LyingService
        LyingService.lie = lie
    elif lie is not None:
        codec = LyingCodec(token)
        codec.lie = lie
    started_at_s, fingerprint = time.time(), fingerprint_of(source)
    with kind(settings, codec, make_drafters(config)) as service:
        print(service.endpoint, flush=True)  # noqa: T201 - read by the test

        def report() -> DraftWorkerReport:
            honest = report_of(
                service,
                service.stats(time.monotonic()),
                worker_id=args.worker_id,
                node_ip="127.0.0.1",
                tokenizer_fingerprint=args.tokenizer or fingerprint,
                started_at_s=started_at_s,
            )
            return msgspec.structs.replace(
                honest,
                endpoint=args.behind or honest.endpoint,
                protocols=[args.protocols] if args.protocols else honest.protocols,
            )

        registry = Registry(redis_settings(config), config.name)
        async with registry, Heartbeat(registry, report, 0.5):
            parent = os.getppid()
            while os.getppid() == parent:
                await asyncio.sleep(0.5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("worker_id")
    parser.add_argument("--lie", choices=LIES)
    parser.add_argument("--behind")
    parser.add_argument("--protocols", type=int)
    parser.add_argument("--tokenizer")
    asyncio.run(serve(parser.parse_args()))
