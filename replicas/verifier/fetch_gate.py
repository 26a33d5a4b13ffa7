"""Fetch KV blocks or compute them: whichever is expected to be sooner. Pure.

Three measurements decide: what computing a token costs, what bringing one from the node's memory
into the engine costs, and what bringing one from a tier behind into that memory costs. A prompt
is looked up if its tokens would come sooner from memory than they are computed; the request waits
for the answer as long as that may pay; and what is found is fetched if that is still sooner.

What can't be known without trying is tried: with nothing measured a prompt is fetched, and every
`PROBE_EVERY`th time against the decision, so that a change is found again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from replicas.verifier.fading_line import Line

PROBE_EVERY: Final = 32
QUICK_S: Final = 0.03
"""What a look-up in memory takes at most, as a rule: 12-17 ms in our measurement."""
WAIT_SHARE: Final = 0.5
"""Part of what may be saved that a request waits to learn whether it will be."""

Reason = Literal["short", "slower", "probe", "always", "unknown", "memory", "tiers"]


@dataclass(frozen=True)
class GateSettings:
    """Of the config.

    Attributes:
        always: Fetch whatever is found.
        shortest_tokens: Prompts with fewer tokens to compute are not looked up.
        wait_max_s: Longest wait for what is found.
    """

    always: bool
    shortest_tokens: int
    wait_max_s: float


@dataclass(frozen=True)
class Rates:
    """What was measured; None where nothing was.

    Attributes:
        compute: Computing tokens of a prompt.
        load: From the node's memory into the engine.
        tiers: From each tier behind into the node's memory, those that answer.
        is_any_away: Whether one of them does not answer.
    """

    compute: Line | None = None
    load: Line | None = None
    tiers: Sequence[Line] = ()
    is_any_away: bool = False


@dataclass(frozen=True)
class LookUp:
    """Whether a prompt is looked up, and how long its request waits for the answer."""

    wait_s: float
    reason: Reason

    @property
    def wanted(self) -> bool:
        """Whether it is looked up at all."""
        return self.wait_s > 0


def saved_s(tokens: int, rates: Rates) -> float | None:
    """By how much sooner so many tokens come from memory; None where it is not known."""
    if rates.compute is None or rates.load is None:
        return None
    # Something is computed in any case, so that only the tokens' own time is saved.
    return rates.compute.s_per_token * tokens - rates.load.at(tokens)


def look_up(settings: GateSettings, tokens: int, rates: Rates, count: int) -> LookUp:
    """Decides about a request that has to compute `tokens`.

    Args:
        settings: Of the config.
        tokens: Of its prompt that the engine does not hold.
        rates: Measured.
        count: Of requests before this one that were long enough.
    """
    if tokens < settings.shortest_tokens:
        return LookUp(0.0, "short")
    if settings.always:
        return LookUp(settings.wait_max_s, "always")
    saved = saved_s(tokens, rates)
    if saved is None:
        return LookUp(settings.wait_max_s, "unknown")
    is_probe = count % PROBE_EVERY == PROBE_EVERY - 1
    if saved <= 0:
        return LookUp(QUICK_S, "probe") if is_probe else LookUp(0.0, "slower")
    pays = any(tier.at(tokens) < saved for tier in rates.tiers)
    if not pays and (rates.tiers or rates.is_any_away) and not is_probe:
        return LookUp(min(QUICK_S, settings.wait_max_s), "memory")
    slowest = max((tier.at(tokens) for tier in rates.tiers if tier.at(tokens) < saved), default=0)
    return LookUp(
        min(settings.wait_max_s, saved, max(WAIT_SHARE * saved, 2 * slowest, QUICK_S)), "tiers"
    )


def fetches(settings: GateSettings, tokens: int, rates: Rates, count: int) -> bool:
    """Whether blocks that lie in memory now are fetched; arguments as for `look_up`."""
    saved = saved_s(tokens, rates)
    is_probe = count % PROBE_EVERY == PROBE_EVERY - 1
    return settings.always or saved is None or saved > 0 or is_probe
