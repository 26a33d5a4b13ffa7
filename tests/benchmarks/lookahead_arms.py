"""One measurement of one arm of `lookahead.py`."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine_process import Ask, EngineProcess, Run
from harness import Metric
from lookahead_parts import WIDE, Place

NONE, AGAIN, NONE_WIDE, GOVERNOR = "none", "none again", f"none{WIDE}", "governor"
THROUGHPUT = Metric("decoding", "tokens/s", higher_is_better=True)
ACCEPTANCE = Metric("drafts accepted", "0-1", higher_is_better=True)
STEP_TOKENS = Metric("tokens a step and request", "tokens", higher_is_better=True)
HITS = Metric("went on as drafted, bonus token too", "0-1", higher_is_better=True)
BRANCHED = Metric("went a prepared way", "0-1", higher_is_better=True)
HIDDEN = Metric("drafting time hidden", "0-1", higher_is_better=True)
METRICS = (THROUGHPUT, ACCEPTANCE, STEP_TOKENS, HITS, BRANCHED, HIDDEN)


@dataclass
class Seen:
    """What predictions of one cell are made from.

    Attributes:
        verify_s: Of a step, waiting left out, by draft length; 0 for no drafts.
        wide_s: Of a step without drafts on both cores.
        draft_s: Of the draft model's steps, by arm.
    """

    verify_s: dict[int, list[float]] = field(default_factory=dict)
    wide_s: list[float] = field(default_factory=list)
    draft_s: dict[str, list[float]] = field(default_factory=dict)


class Part:
    """One acceptance.

    Args:
        place: What runs.
        prompts: Token ids of the prompts, enough for all repetitions.
        tokens: Of each answer, by batch.
    """

    def __init__(self, place: Place, prompts: list[list[int]], tokens: Mapping[int, int]) -> None:
        self.seen: dict[int, Seen] = {}
        self._place, self._prompts, self._tokens = place, prompts, tokens
        self._reading_s: dict[tuple[str, int, int], float] = {}

    def run(self, arm: str, batch: int, repetition: int) -> dict[str, float]:
        """One measurement: as many prompts as the batch has, at once."""
        place, seen = self._place, self.seen.setdefault(batch, Seen())
        kind, _, length = arm.partition(" ")
        worker = place.workers.get(
            {"split": "waits", "ahead": "ahead", GOVERNOR: "ahead"}.get(kind, "")
        )
        wish: dict[str, str | int] = {}
        reader = NONE_WIDE if kind.endswith(WIDE) else NONE if worker is None else "split"
        engine = self._reader(reader)
        if kind in ("split", "ahead"):
            wish = {"paceline_speculation": int(length)}
        elif kind.startswith("colocated"):
            engine = place.colocated.of(arm)
        endpoint = worker.endpoint if worker is not None else ""
        before = worker.stats()["counts"] if worker is not None else {}
        prompts = self._asked(batch, repetition)
        run = _answer(engine, prompts, self._tokens[batch], wish, endpoint)
        decoding_s = run.seconds - self._reads(reader, batch, repetition)
        decoded = (self._tokens[batch] - 1) * batch
        steps, drafted, wait_s = run.steps - 1, run.drafted, run.wait_s
        values = {
            THROUGHPUT.name: decoded / decoding_s,
            STEP_TOKENS.name: decoded / steps / batch,
        }
        if arm == NONE_WIDE:
            seen.wide_s.append(decoding_s / steps)
        elif arm == NONE or kind == "split":
            seen.verify_s.setdefault(int(length or 0), []).append((decoding_s - wait_s) / steps)
        if drafted:
            values[ACCEPTANCE.name] = run.accepted / drafted
        if worker is not None and drafted:
            after = worker.stats()
            counts = {name: after["counts"][name] - before[name] for name in before}
            went_on = counts["followed"] + counts["branched"] + counts["restarted"]
            seen.draft_s.setdefault(arm, []).append(after["step_s"])
            # Rows of one batch are drafted together.
            values[HIDDEN.name] = max(0.0, 1 - wait_s / (drafted / batch * after["step_s"]))
            values[HITS.name] = counts["followed"] / went_on if went_on else 0.0
            values[BRANCHED.name] = counts["branched"] / went_on if went_on else 0.0
        return values

    def _reader(self, name: str) -> EngineProcess:
        return self._place.split if name == "split" else self._place.plain[name]

    def _reads(self, reader: str, batch: int, repetition: int) -> float:
        """Time in which this engine reads the prompts, seconds."""
        key = reader, batch, repetition
        if key not in self._reading_s:
            engine, wish = self._reader(reader), {"paceline_speculation": 0}
            prompts = self._asked(batch, repetition)
            taken = [_answer(engine, prompts, 1, wish, "").seconds for _ in range(3)]
            self._reading_s[key] = statistics.median(taken)
        return self._reading_s[key]

    def _asked(self, batch: int, repetition: int) -> list[list[int]]:
        return self._prompts[repetition * batch : (repetition + 1) * batch]


def _answer(
    engine: EngineProcess,
    prompts: list[list[int]],
    tokens: int,
    wish: Mapping[str, str | int],
    endpoint: str,
) -> Run:
    asks = [Ask(prompt=prompt, max_tokens=tokens, xargs=dict(wish)) for prompt in prompts]
    return engine.run(asks, "given" if endpoint else "none", endpoint=endpoint)
