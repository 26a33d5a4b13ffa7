"""Asks the governor for each step's draft lengths, and learns from what became of them.

The state around the pure decision (`governor.py`): acceptance (`acceptance.py`), step
times (`step_model.py`), waits for drafts, probes (`probing.py`), what a source's confidence is
worth (`confidence.py`) and what each request wishes (`request_speculation.py`).

    choose      lengths for the sequences of the next step
    patience    how long to wait for what a draft model is still making of them
    worth       how much of a draft that is there to verify, by how sure its source is
    drafted     what was found for one of them
    settled     what the target made of it
    stepped     how long a step took
    waited      how long drafting took in it, and how much of it was patience
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any, Literal, cast

import numpy as np

from kvstore.verifier_report import GovernorReport
from replicas.verifier.acceptance import Acceptance, RequestRecord
from replicas.verifier.confidence import Confidences
from replicas.verifier.draft_books import LengthBooks, TimeBooks
from replicas.verifier.draft_costs import AUTO, Batch
from replicas.verifier.governor import STOP_ALL, STOP_LOW, Decision, Reason, decide
from replicas.verifier.governor_report import governor_report
from replicas.verifier.patience import Outlook, worth_waiting
from replicas.verifier.probing import Probes, Turn
from replicas.verifier.request_speculation import LOW, Wish, wish_of
from replicas.verifier.step_cost import StepCost, StepLoad
from replicas.verifier.step_model import StepModel


@dataclass(frozen=True)
class GovernorSettings:
    """What the config says of draft lengths (`drafting`).

    Attributes:
        max_length: Longest draft, tokens.
        mode: `auto`: what pays; `fixed`: always `max_length`; `off`: nothing.
        of_class: Draft tokens or `AUTO` by request class.
        probe_share: Part of step time that may go into probes, 0-1.
        longest_step: Of a step with drafts, as a multiple of the same step without.
    """

    max_length: int
    mode: Literal["auto", "fixed", "off"] = "fixed"
    of_class: tuple[tuple[str, int], ...] = (("interactive", AUTO), (LOW, AUTO))
    probe_share: float = 0.01
    longest_step: float = math.inf


class _Request:
    """One request that is drafted for."""

    __slots__ = (
        *("chosen", "confidence", "expected", "is_low", "is_left", "length", "rates", "record"),
        *("source", "turn"),
    )

    def __init__(self, record: RequestRecord, length: int, is_low: bool, step: int) -> None:
        self.record, self.length, self.is_low = record, length, is_low
        self.turn = Turn(step)
        self.source, self.chosen = "", 0
        self.is_left = False
        """Whether its draft of this step is being made, and not worth waiting for."""
        self.confidence = self.expected = 0.0
        self.rates: Sequence[float] = ()


class DraftLengths:
    """Draft lengths of one engine.

    Args:
        settings: What the config says.
        shapes: Execution shapes of the engine, rows; see `StepCost`.

    Attributes:
        pressure: 0-5, from the front door.
        model: What steps cost.
    """

    def __init__(self, settings: GovernorSettings, shapes: tuple[int, ...] = ()) -> None:
        self.pressure = 0
        self.model = StepModel(shapes)
        self._settings = settings
        self._of_class = dict(settings.of_class)
        self._acceptance = Acceptance(settings.max_length)
        self._confidences = Confidences()
        self._price = 0.0
        """Tokens that a draft token of this step must bring to be worth its time."""
        self._probes = Probes(settings.probe_share)
        self._requests: dict[str, _Request] = {}
        self._step = 0
        self._drafting = True
        self._times = TimeBooks()
        self._tokens_per_s = self._draft_token_s = 0.0
        """What the engine makes in a second, and what a draft token of this step takes it."""
        self._books = LengthBooks(settings.max_length)

    def choose(
        self,
        request_ids: Sequence[str],
        params: Sequence[Any],
        context: Sequence[int],
        longest: Sequence[int],
    ) -> list[int]:
        """Draft tokens worth asking for, a sequence each.

        Args:
            request_ids: vLLM's.
            params: vLLM's sampling parameters, or None.
            context: KV tokens of each sequence.
            longest: Draft tokens that can be of use to each.
        """
        self._step += 1
        if not request_ids:
            return []
        requests = [
            self._requests.get(request_id) or self._begin(request_id, its_params)
            for request_id, its_params in zip(request_ids, params, strict=True)
        ]
        batch = self._batch(requests, context, longest)
        cost = self.model.cost
        asking_s = self._times.asking_s
        decision = decide(
            batch, cost, asking_s, self.pressure, self._drafting, self._settings.longest_step
        )
        if (batch.longest[batch.wished == AUTO] > 0).any():
            self._drafting = decision.drafts
        lengths = cast(list[int], decision.lengths.tolist())
        self._probes.earn(decision.seconds)
        self._probe(requests, batch, decision, lengths, cost, asking_s)
        expected = cast(list[float], decision.tokens_by_row.tolist())
        rates = cast(list[list[float]], batch.acceptance.tolist())
        for request, length, tokens, its_rates in zip(
            requests, lengths, expected, rates, strict=True
        ):
            request.chosen, request.expected, request.source = length, tokens, ""
            request.rates, request.is_left = its_rates, False
        self._price = decision.price
        self._draft_token_s = decision.draft_token_s
        self._tokens_per_s = self._times.tokens_per_s(len(requests))
        self._books.chosen(batch, decision, lengths)
        return lengths

    def first(self, params: Any) -> int:
        """Draft tokens to ask a draft model for while the prompt of a new request is read.

        Args:
            params: vLLM's sampling parameters, or None.
        """
        wish = self._wish(params)
        yields_from = STOP_LOW if wish.request_class == LOW else STOP_ALL
        if self.pressure >= yields_from or getattr(params, "max_tokens", None) == 1:
            return 0
        if wish.length != AUTO:
            return wish.length
        return self._settings.max_length if self._drafting else 0

    def patience(self, outlooks: Mapping[str, Outlook]) -> float:
        """Seconds to wait for drafts that are being made, 0 for no longer. A draft whose length
        is not ours to decide, or that is a probe, is waited for.

        Args:
            outlooks: By request, of all that were asked for.
        """
        drafts = [
            (request, outlook)
            for name, outlook in outlooks.items()
            if (request := self._requests.get(name)) is not None
        ]
        rows = [(self._places_worth(request), outlook) for request, outlook in drafts]
        if wait_s := worth_waiting(rows, self._tokens_per_s):
            return wait_s
        left = [(request, outlook) for request, outlook in drafts if outlook.next_s < math.inf]
        probe_s = self._probe_left(left)
        for request, _ in left:
            request.is_left = not request.turn.is_out
        return probe_s

    def _places_worth(self, request: _Request) -> list[float]:
        """Tokens that each place of the draft that was asked for brings, more than it costs."""
        if request.length != AUTO or request.turn.is_out:
            return [math.inf] * request.chosen
        price = self._draft_token_s * self._tokens_per_s
        return [chance - price for chance in accumulate(request.rates[: request.chosen], mul)]

    def worth(self, request_id: str, source: str, confidence: float, tokens: int) -> int:
        """How many tokens of a draft to verify. All, where the length is not ours to decide.

        Args:
            request_id: Of whom it is.
            source: Who drafted.
            confidence: Of the source, 0-1; 0: it said nothing.
            tokens: There are.
        """
        request = self._requests.get(request_id)
        if request is None or request.length != AUTO or request.turn.is_out:
            return tokens
        kept = self._confidences.worth(
            request.rates[:tokens], self._price, source, confidence, self._step
        )
        request.expected = 1.0 + sum(kept)
        return len(kept)

    def drafted(self, request_id: str, source: str, confidence: float, tokens: int) -> None:
        """So many tokens will be verified of the draft of a request that was asked for."""
        request = self._requests.get(request_id)
        if request is None:
            return
        request.confidence = confidence
        if tokens or not request.is_left:
            self._acceptance.asked(request.record, tokens > 0, self._step)
        else:
            request.expected = 1.0
        request.source = source if tokens else ""
        if not tokens and request.turn.is_out:
            request.turn.came_back(False, self._step)

    def settled(self, request_id: str, new_tokens: int, drafted: int) -> None:
        """A step brought a request so many tokens, `drafted` draft tokens being verified in it."""
        request = self._requests.get(request_id)
        if request is None:
            return
        self._times.brought(new_tokens)
        if request.expected:
            self._books.brought(request.expected, new_tokens)
            request.expected = 0.0
        if drafted < 1 or not request.source:
            return
        accepted = min(drafted, new_tokens - 1)
        self._acceptance.verified(request.record, request.source, drafted, accepted, self._step)
        self._confidences.verified(
            request.source, request.confidence, drafted, accepted, self._step
        )
        if request.turn.is_out:
            request.turn.came_back(accepted > 0, self._step)

    def stepped(self, load: StepLoad, seconds: float) -> None:
        """A step of pure decoding took so long, drafting left out."""
        self.model.saw(load, seconds)
        self._times.stepped(seconds)

    def waited(self, seconds: float, chosen_s: float, asked: bool) -> None:
        """Drafting took so long in a step; arguments as in `TimeBooks.drafted`."""
        self._times.drafted(seconds, chosen_s, asked, self._step)

    def forget(self, request_ids: Iterable[str]) -> None:
        """These requests are over."""
        for request_id in request_ids:
            self._requests.pop(request_id, None)

    def report(self) -> GovernorReport:
        """Where drafting is, and by what."""
        return governor_report(
            *(self._settings.mode, self.pressure, self._books, self.model),
            wait_s=self._times.wait_s,
            probes=self._probes.made,
        )

    def _begin(self, request_id: str, params: Any) -> _Request:
        wish = self._wish(params)
        record = self._acceptance.start(wish.request_class, self._step)
        request = _Request(record, wish.length, wish.request_class == LOW, self._step)
        self._requests[request_id] = request
        return request

    def _wish(self, params: Any) -> Wish:
        longest, mode = self._settings.max_length, self._settings.mode
        wish = wish_of(params, self._of_class, longest)
        if mode == "off":
            return Wish(wish.request_class, 0)
        if mode == "fixed" and wish.length == AUTO:
            return Wish(wish.request_class, longest)
        return wish

    def _batch(
        self, requests: Sequence[_Request], context: Sequence[int], longest: Sequence[int]
    ) -> Batch:
        records = [request.record for request in requests]
        return Batch(
            context=np.array(context, dtype=np.float64),
            acceptance=self._acceptance.rates(records, self._step),
            found=self._acceptance.found(records, self._step),
            longest=np.array(longest, dtype=np.int64),
            wished=np.array([request.length for request in requests], dtype=np.int64),
            low=np.array([request.is_low for request in requests], dtype=np.bool_),
        )

    def _probe_left(self, left: Sequence[tuple[_Request, Outlook]]) -> float:
        """Waits for the first token of one draft that nobody would wait for, if that is due and
        paid for: its seconds.
        """
        turns = [
            (i, request.turn)
            for i, (request, outlook) in enumerate(left)
            if not outlook.have and request.length == AUTO
        ]
        if not turns:
            return 0.0
        price_s = max(left[i][1].next_s for i, _ in turns) + self._draft_token_s
        row = self._probes.pick(turns, price_s, self._step)
        if row is None:
            return 0.0
        request, outlook = left[row]
        request.chosen = 1
        return outlook.next_s

    def _probe(
        self,
        requests: Sequence[_Request],
        batch: Batch,
        decision: Decision,
        lengths: list[int],
        cost: StepCost,
        wait_s: float,
    ) -> None:
        """Gives one row without a draft a token to try, if it is due and paid for."""
        if self.pressure >= STOP_ALL or 0 not in lengths:
            return
        turns = [
            (i, request.turn)
            for i, request in enumerate(requests)
            if not lengths[i]
            and request.length == AUTO
            and batch.longest[i] > 0
            and not (request.is_low and self.pressure >= STOP_LOW)
        ]
        if not turns:
            return
        rows = len(lengths) + float((decision.lengths * batch.found).sum())
        low_s, high_s = cost.rows_s(np.array([rows, rows + 1.0]))
        price_s = float(high_s - low_s) + cost.draft_kv_s * float(batch.context.max())
        if not decision.drafts:
            price_s += wait_s
        row = self._probes.pick(turns, price_s, self._step)
        if row is not None:
            lengths[row] = 1
            decision.reasons[row] = Reason.PROBE
