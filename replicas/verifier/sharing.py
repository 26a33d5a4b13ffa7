"""The sharing domain of a request on its way from the front door to the draft workers.

The front door writes it into `vllm_xargs`, where clients can't; vLLM carries it to the engine
with the sampling parameters; the proposer reads it there and tells the worker.
"""

from typing import Any, Final

DOMAIN: Final = "paceline_domain"
"""Key in `vllm_xargs`, with 64 hex digits."""
_DIGITS: Final = 64


def domain_of(params: Any) -> bytes:
    """The domain that vLLM's sampling parameters carry; empty where there is none."""
    told = getattr(params, "extra_args", None) or {}
    digits = told.get(DOMAIN)
    if not isinstance(digits, str) or len(digits) != _DIGITS:
        return b""
    try:
        return bytes.fromhex(digits)
    except ValueError:
        return b""
