"""Puts the verifier's half of split drafting together, inside the rank that proposes."""

import math
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from configs.schema import ClusterConfig
from kvstore.cluster_token import cluster_token
from kvstore.verifier_report import SourceCounts
from replicas.messages import Codec
from replicas.verifier.draft_lengths import DraftLengths, GovernorSettings
from replicas.verifier.draft_pool import DraftPool, WorkerAddress
from replicas.verifier.drafting_state import DraftingState
from replicas.verifier.proposer import Proposer, ProposerSettings
from replicas.verifier.request_speculation import class_lengths
from replicas.verifier.step_watch import StepWatch


class DraftingHost:
    """Owns the pool, the step watch and the proposer's connection to them.

    Args:
        runner: vLLM's model runner, whose drafter is our proposer.
        config: The cluster's config, with `drafting.split`.
        tokenizer_fingerprint: The target's.

    Raises:
        NoClusterToken: The secret that draft workers know us by can't be read.
    """

    def __init__(self, runner: Any, config: ClusterConfig, tokenizer_fingerprint: str) -> None:
        self._pool = DraftPool(
            Codec(cluster_token(config)),
            runner.model_config.get_vocab_size(),
            tokenizer_fingerprint,
        )
        self._watch = StepWatch()
        self._watch.attach(runner)
        self._proposer = cast(Proposer, runner.drafter)
        # vLLM verifies made-up drafts for every row while one of them is near this limit. Its
        # scheduler clips drafts to the context by itself.
        runner.effective_drafter_max_model_len = (
            runner.max_model_len + config.drafting.max_length + 1
        )
        self._lengths = DraftLengths(governor_settings(config), self._proposer.shapes)
        self._proposer.connect(
            runner, self._pool, self._watch, proposer_settings(config), self._lengths
        )

    def tick(self, workers: Sequence[dict[str, Any]], pressure: int) -> dict[str, Any]:
        """See `WorkerExtension.drafting_tick`."""
        self._lengths.pressure = pressure
        self._pool.update([msgspec.convert(worker, WorkerAddress) for worker in workers])
        self._proposer.tick()
        return cast(dict[str, Any], msgspec.to_builtins(self._state()))

    def _state(self) -> DraftingState:
        pool, watch, proposer = self._pool.stats, self._watch, self._proposer
        return DraftingState(
            sources={
                source: SourceCounts(list(account.drafted), list(account.accepted))
                for source, account in proposer.accounts.by_source.items()
            },
            workers=self._pool.states(),
            asks=pool.messages,
            answers=pool.answers,
            late_answers=pool.late_answers,
            deadline_misses=pool.deadline_misses,
            violations=dict(pool.violations),
            waits=pool.waits,
            wait_s=pool.wait_s,
            steps=watch.steps,
            step_s=dict(watch.total_s),
            sessions=proposer.sessions,
            failures=proposer.failures,
            governor=self._lengths.report(),
        )


def governor_settings(config: ClusterConfig) -> GovernorSettings:
    """What the config says of draft lengths."""
    drafting = config.drafting
    return GovernorSettings(
        max_length=drafting.max_length,
        mode=drafting.governor.mode,
        of_class=class_lengths(dict(drafting.classes)),
        probe_share=drafting.governor.probe_share,
        longest_step=drafting.governor.longest_step or math.inf,
    )


def proposer_settings(config: ClusterConfig) -> ProposerSettings:
    """What the config says of drafting in the verifier."""
    split = config.drafting.split
    assert split is not None, "only called where drafting is split"
    return ProposerSettings(
        max_length=config.drafting.max_length,
        shortest_match=split.shortest_match,
        local_lookup=split.local_lookup,
        wait_fraction=split.wait_fraction,
        wait_max_s=split.wait_max_ms / 1e3,
    )
