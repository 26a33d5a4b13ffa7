"""How much prefill a verifier has before it, and how fast it gets on, as its front end sees it.

An episode is a time in which at least one request waits for its first token; a long one is
cut at a first token. Each gives a pair (tokens computed, seconds), and a line through the
pairs (`replicas/verifier/fading_line.py`) gives what a prefill costs. Steps that decode for
others in between are in the seconds, so the line shows what a prefill costs under the present
load. Tokens found in a cache are not computed and don't count.
"""

from dataclasses import dataclass

from replicas.verifier.fading_line import FadingLine

CUT_AFTER_S = 1.0
UNCACHED_WEIGHT = 0.1
"""Of the newest request, in the running part of prompt tokens that no cache had."""


@dataclass(frozen=True)
class PrefillCost:
    """Of one prefill: what it costs at all, and for each token. Zeros: nothing is known."""

    base_s: float = 0.0
    s_per_token: float = 0.0


class PrefillMeter:
    """Told of each request's start, first token and end."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[int, bool]] = {}
        self._waiting_tokens = self._batch_tokens = 0
        self._uncached = 1.0
        self._began_s = 0.0
        self._tokens = 0
        self._line = FadingLine()

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens to be computed before the last waiting request gets its first token.

        What a cache has of them is known only when it is used, so the usual part is taken off.
        """
        return int(self._waiting_tokens * self._uncached)

    @property
    def queued_batch_tokens(self) -> int:
        """Of them those of requests that can wait."""
        return int(self._batch_tokens * self._uncached)

    @property
    def waiting(self) -> int:
        """Requests without a first token."""
        return len(self._waiting)

    def started(
        self, request_id: str, prompt_tokens: int, now_s: float, can_wait: bool = False
    ) -> None:
        """A request came to the engine (monotonic clock, seconds)."""
        if not self._waiting:
            self._began_s, self._tokens = now_s, 0
        self.ended(request_id)
        self._waiting[request_id] = prompt_tokens, can_wait
        self._waiting_tokens += prompt_tokens
        self._batch_tokens += prompt_tokens * can_wait

    def first_token(
        self, request_id: str, prompt_tokens: int, cached_tokens: int, now_s: float
    ) -> None:
        """A request got its first token, `cached_tokens` of its prompt from a cache."""
        if request_id not in self._waiting:
            return
        self.ended(request_id)
        computed = max(0, prompt_tokens - cached_tokens)
        if prompt_tokens:
            newest = computed / prompt_tokens
            self._uncached += UNCACHED_WEIGHT * (newest - self._uncached)
        self._tokens += computed
        if not self._waiting or now_s - self._began_s > CUT_AFTER_S:
            self._line.note(self._tokens, now_s - self._began_s)
            self._began_s, self._tokens = now_s, 0

    def ended(self, request_id: str) -> None:
        """A request left; it may never have got a token."""
        prompt_tokens, can_wait = self._waiting.pop(request_id, (0, False))
        self._waiting_tokens -= prompt_tokens
        self._batch_tokens -= prompt_tokens * can_wait

    def cost(self) -> PrefillCost:
        """What a prefill costs, as far as is known."""
        line = self._line.line()
        return PrefillCost(line.base_s, line.s_per_token) if line else PrefillCost()
