"""The proposer plug-in: where vLLM asks, once an engine step, which tokens to verify next.

vLLM builds one in every rank (`speculative_config.method = "custom_class"`). It proposes
nothing until `connect`, which only the rank that proposes is given. Each step, for every
sequence that got tokens:

    govern     how many tokens are worth drafting for each sequence, often none
    exchange   tell the draft workers what was appended, take what they have answered, and
               wait for what is missing as long as it pays, at most a part of the step time
    draft      a worker's continuation, or else prompt lookup here, or nothing; of one whose
               source is not sure only as much as pays
    trim       vLLM checks nothing: too long a draft or a token outside the vocabulary would
               end the engine

Sequences are known by vLLM's request id: rows move, are preempted and come back, but a
sequence of one id only ever grows. Nothing here raises: whatever goes wrong costs drafts.
"""

import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from replicas.messages import Tokens
from replicas.prompt_lookup import prompt_lookup
from replicas.verifier.continuations import SourcedDraft
from replicas.verifier.draft_accounts import DraftAccounts
from replicas.verifier.draft_lengths import DraftLengths
from replicas.verifier.draft_pool import DraftPool, Row
from replicas.verifier.patience import Outlook, Patience
from replicas.verifier.sharing import domain_of
from replicas.verifier.step_watch import StepWatch

logger = logging.getLogger(__name__)

LOCAL = "local:prompt_lookup"
NEWS_TOKENS = 32
"""Tokens that a worker may not know yet of a sequence for which it is asked nothing."""
FIRST_WAIT_S = 0.005
"""Longest wait before any step was measured."""


class Sequences(Protocol):
    """vLLM's model runner, as far as it is looked at."""

    input_batch: Any
    requests: Mapping[str, Any]
    max_model_len: int


@dataclass(frozen=True)
class ProposerSettings:
    """What the config says of drafting (`drafting` and `drafting.split`).

    Attributes:
        max_length: Longest draft, tokens.
        shortest_match: Of local prompt lookup, tokens.
        local_lookup: Whether prompt lookup here stands in for workers.
        wait_fraction: Longest wait as a multiple of the step time.
        wait_max_s: Longest wait, seconds.
    """

    max_length: int
    shortest_match: int
    local_lookup: bool
    wait_fraction: float
    wait_max_s: float


class Proposer:
    """vLLM's `custom_class` proposer.

    Args:
        vllm_config: vLLM's, of the engine.
    """

    def __init__(self, vllm_config: Any) -> None:
        self._vocab_size: int = vllm_config.model_config.get_vocab_size()
        self.shapes = execution_shapes(vllm_config)
        self.accounts = DraftAccounts()
        self.failures = 0
        """Steps that drafted nothing because of an error here."""
        self._runner: Sequences | None = None
        self._pool: DraftPool | None = None
        self._numbers = itertools.count(1)
        self._sessions: dict[str, int] = {}
        """Request id -> session number."""
        self._told: dict[int, int] = {}
        """Session -> tokens of it that its worker was sent."""
        self._asked = False
        """Whether the current step asks for drafts."""
        self._ended: list[int] = []

    @property
    def sessions(self) -> int:
        """Sequences that are being drafted now."""
        return len(self._sessions)

    def load_model(self, *_: Any, **__: Any) -> None:
        """Called by vLLM with the target model, which is not needed."""

    def connect(
        self,
        runner: Sequences,
        pool: DraftPool,
        watch: StepWatch,
        settings: ProposerSettings,
        lengths: DraftLengths,
    ) -> None:
        """Begins to propose.

        Args:
            runner: vLLM's model runner.
            pool: The draft workers.
            watch: Watches the runner.
            settings: What the config says.
            lengths: Decides how much is drafted.
        """
        self._runner, self._pool, self._watch, self._settings = runner, pool, watch, settings
        self._lengths = lengths
        watch.on_prompts = self.begins

    def begins(self, new_requests: Sequence[Any]) -> None:
        """Called before the step in which vLLM begins to read prompts: a draft model reads them
        at the same time, so that its first draft may be there with the first token.

        Args:
            new_requests: vLLM's `NewRequestData`.
        """
        if self._pool is None or not self._pool.has_model:
            return
        try:
            rows: dict[int, Row] = {}
            for request in new_requests:
                wanted = self._lengths.first(request.sampling_params)
                if not wanted or not request.prompt_token_ids or request.req_id in self._sessions:
                    continue
                prompt = np.array(request.prompt_token_ids, dtype=np.int32)
                session = self._sessions[request.req_id] = next(self._numbers)
                self._told[session] = len(prompt)
                rows[session] = Row(prompt, wanted, domain_of(request.sampling_params))
            if rows:
                self._pool.exchange(rows, (), 0.0)
        except Exception:
            self._failed()

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: "np.ndarray[Any, Any]",
        token_ids_cpu: "np.ndarray[Any, Any]",
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Drafts for each row of the batch; called by vLLM after each step.

        Args:
            sampled_token_ids: New tokens of each row; none where it is still in prefill.
            num_tokens_no_spec: [rows] tokens of each sequence, new ones included.
            token_ids_cpu: [rows, longest context] the sequences.
            slot_mappings: Not looked at.

        Returns:
            For each row up to `max_length` tokens, often none.
        """
        if self._runner is None:
            return [[] for _ in sampled_token_ids]
        started_s = time.perf_counter()
        self._asked = False
        try:
            return self._propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception:
            self._failed()
            return [[] for _ in sampled_token_ids]
        finally:
            drafted_s = time.perf_counter() - started_s
            self._watch.drafted(drafted_s)
            chosen_s = self._pool.chosen_s if self._pool is not None and self._asked else 0.0
            self._lengths.waited(drafted_s, chosen_s, self._asked)

    def tick(self) -> None:
        """Called about once a second, also when the engine is idle: forgets what is over."""
        if self._runner is None or self._pool is None:
            return
        try:
            self._exchange(self._runner, self._pool, {}, 0.0)
        except Exception:
            self._failed()

    def _propose(
        self,
        sampled: list[list[int]],
        lengths: "np.ndarray[Any, Any]",
        tokens: "np.ndarray[Any, Any]",
    ) -> list[list[int]]:
        runner, pool = self._runner, self._pool
        assert runner is not None and pool is not None
        if (step := self._watch.take_sample()) is not None:
            self._lengths.stepped(*step)
        self._settle(runner, sampled)
        drafts: list[list[int]] = [[] for _ in sampled]
        places = [i for i, new in enumerate(sampled) if new]
        request_ids = [runner.input_batch.req_ids[i] for i in places]
        context = [int(lengths[i]) for i in places]
        wanted = self._wanted(runner, request_ids, context)
        self._asked = any(wanted)
        rows: dict[int, Row] = {}
        asking: list[tuple[int, str, int, Row]] = []
        for i, request_id, length, its_wanted in zip(
            places, request_ids, context, wanted, strict=True
        ):
            session = self._sessions.get(request_id)
            if session is None:
                session = self._sessions[request_id] = next(self._numbers)
            params = getattr(runner.requests.get(request_id), "sampling_params", None)
            row = Row(tokens[i, :length], its_wanted, domain_of(params))
            if its_wanted or length - self._told.get(session, 0) >= NEWS_TOKENS:
                self._told[session] = length
                rows[session] = row
            if its_wanted:
                asking.append((i, request_id, session, row))
        names = {session: request_id for _, request_id, session, _ in asking}

        def patience(outlooks: Mapping[int, Outlook]) -> float:
            return self._lengths.patience({names[key]: its for key, its in outlooks.items()})

        self._exchange(runner, pool, rows, self._longest_wait_s() if asking else 0.0, patience)
        for i, request_id, session, row in asking:
            draft = self._draft(pool, session, row)
            checked = self._checked(draft.tokens, row.wanted)
            source, confidence = draft.source, draft.confidence
            worth = self._lengths.worth(request_id, source, confidence, len(checked))
            drafts[i] = checked[:worth]
            self.accounts.proposed(request_id, source)
            self._lengths.drafted(request_id, source, confidence, worth)
        return drafts

    def _wanted(self, runner: Sequences, request_ids: list[str], context: list[int]) -> list[int]:
        """Draft tokens to ask for, by request."""
        params = [
            getattr(runner.requests.get(request_id), "sampling_params", None)
            for request_id in request_ids
        ]
        room = [
            self._room(runner, request_id, length)
            for request_id, length in zip(request_ids, context, strict=True)
        ]
        return self._lengths.choose(request_ids, params, context, room)

    def _draft(self, pool: DraftPool, session: int, row: Row) -> SourcedDraft:
        draft = pool.draft(session, row.context, row.wanted)
        if draft is not None and len(draft.tokens):
            return draft
        if not self._settings.local_lookup:
            return SourcedDraft(row.context[:0], "")
        found = prompt_lookup(row.context, row.wanted, self._settings.shortest_match)
        return SourcedDraft(found, LOCAL)

    def _checked(self, tokens: Tokens, wanted: int) -> list[int]:
        """As a list, without the first token that is in no vocabulary and all behind it."""
        draft: list[int] = tokens[:wanted].tolist()
        for place, token in enumerate(draft):
            if not 0 <= token < self._vocab_size:
                return draft[:place]
        return draft

    def _room(self, runner: Sequences, request_id: str, length: int) -> int:
        """How many draft tokens can still be of use: one token of each step is the target's."""
        room = min(self._settings.max_length, runner.max_model_len - length - 1)
        request = runner.requests.get(request_id)
        params = getattr(request, "sampling_params", None)
        if params is not None and params.max_tokens is not None:
            left = params.max_tokens - (length - request.num_prompt_tokens)  # type: ignore[union-attr]
            room = min(room, left - 1)
        return max(0, room)

    def _settle(self, runner: Sequences, sampled: list[list[int]]) -> None:
        """Counts what became of the drafts that this step verified."""
        for i, new in enumerate(sampled):
            if not new:
                continue
            request_id = runner.input_batch.req_ids[i]
            drafted = 0
            if draft := self._watch.verified.get(request_id):
                drafted = sum(token >= 0 for token in draft)
                self.accounts.verified(request_id, drafted, min(drafted, len(new) - 1))
            self._lengths.settled(request_id, len(new), drafted)

    def _exchange(
        self,
        runner: Sequences,
        pool: DraftPool,
        rows: Mapping[int, Row],
        wait_s: float,
        patience: Patience | None = None,
    ) -> None:
        """Asks the workers, and tells them which sessions are over."""
        ended = [request_id for request_id in self._sessions if request_id not in runner.requests]
        self.accounts.forget(ended)
        self._lengths.forget(ended)
        sessions = [self._sessions.pop(request_id) for request_id in ended]
        for session in sessions:
            self._told.pop(session, None)
        self._ended += sessions
        pool.exchange(rows, self._ended, wait_s, patience)
        self._ended = []

    def _failed(self) -> None:
        """Called where an exception is being handled."""
        self.failures += 1
        if self.failures == 1:
            logger.exception("proposer failed; this step has no drafts")

    def _longest_wait_s(self) -> float:
        step_s = self._watch.mean_s
        wait_s = step_s * self._settings.wait_fraction if step_s else FIRST_WAIT_S
        return min(wait_s, self._settings.wait_max_s)


def execution_shapes(vllm_config: Any) -> tuple[int, ...]:
    """Rows of the graphs that the engine pads its steps to; none where it captures none."""
    compilation = getattr(vllm_config, "compilation_config", None)
    mode = getattr(compilation, "cudagraph_mode", None)
    if mode is None or mode.name == "NONE":
        return ()
    return tuple(sorted(compilation.cudagraph_capture_sizes or ()))  # type: ignore[union-attr]
