"""The last scaling decision, for whoever wants to see it: one key in Redis.

    paceline:{cluster}:scaling    one report, msgpack; stays for an hour after the last decision

The autoscaler in Serve's controller writes it, `paceline status` reads it, and an autoscaler that
starts anew takes from it how long starts take. What is read is checked, as in the registry.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kvstore.redis_client import RedisSettings, connect_blocking, store_errors
from kvstore.report_types import Count, Ratio, Seconds, Text, Word

MAX_BYTES: Final = 16 * 1024
KEPT_S: Final = 3600
PROTOCOL: Final = 1


class PoolReport(msgspec.Struct, frozen=True):
    """Of the verifiers, or of the draft workers.

    Attributes:
        running: That are there.
        before: That there should have been, by the decision before.
        target: That there shall be.
        needed: That the load would need now, whatever the bounds.
        reason: In words.
    """

    running: Count
    before: Count
    target: Count
    needed: Count
    reason: Text


class ScalingReport(msgspec.Struct, frozen=True, kw_only=True):
    """One decision, and what it was made from.

    Attributes:
        at_s: Wall clock, seconds.
        verifiers: How many.
        draft_workers: How many; None where they don't scale.
        limit: What one verifier fewer would break; a word of `forecast.Limit`, or `unknown`.
        rate: Requests a second that are planned for,
        measured_rate: and that came.
        prompt_tokens: Of a request, without what caches had.
        output_tokens: Of an answer.
        tokens_per_step: E[N].
        step_s: Of a step, seconds,
        sequence_s: of a sequence in it,
        token_s: and of a prompt token.
        utilization: Part of the verifiers' time that is predicted to be used, 0 and above.
        ttft_s: Predicted for the asked part of requests, with the verifiers that are planned.
        tpot_s: Predicted.
        attainment: Part of recent requests that met both targets, 0-1; None: too few.
        cold_start_s: From a decision to a verifier's start.
    """

    at_s: Seconds
    verifiers: PoolReport
    draft_workers: PoolReport | None = None
    limit: Word = "unknown"
    rate: Seconds = 0.0
    measured_rate: Seconds = 0.0
    prompt_tokens: Seconds = 0.0
    output_tokens: Seconds = 0.0
    tokens_per_step: Seconds = 0.0
    step_s: Seconds = 0.0
    sequence_s: Seconds = 0.0
    token_s: Seconds = 0.0
    utilization: Seconds = 0.0
    ttft_s: Seconds | None = None
    tpot_s: Seconds | None = None
    attainment: Ratio | None = None
    cold_start_s: Seconds = 0.0
    protocol: Annotated[int, Meta(ge=PROTOCOL, le=PROTOCOL)] = PROTOCOL


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ScalingReport)


def scaling_key(cluster: str) -> str:
    """Where the last decision of a cluster is."""
    return f"paceline:{cluster}:scaling"


def write_scaling(settings: RedisSettings, cluster: str, decided: ScalingReport) -> None:
    """Puts a decision where others find it.

    Raises:
        StoreUnavailable: Redis did not take it.
    """
    with store_errors(settings), connect_blocking(settings) as client:
        client.set(scaling_key(cluster), _encoder.encode(decided), ex=KEPT_S)


def read_scaling(settings: RedisSettings, cluster: str) -> ScalingReport | None:
    """The last decision; None where there is none, or none that can be believed.

    Raises:
        StoreUnavailable: Redis can't be asked.
    """
    with store_errors(settings), connect_blocking(settings) as client:
        value = client.getrange(scaling_key(cluster), 0, MAX_BYTES)
    if not isinstance(value, bytes) or not value or len(value) > MAX_BYTES:
        return None
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, RecursionError):
        return None
