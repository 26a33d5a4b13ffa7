"""Token ids in a request: whether each is one of the vocabulary.

An id outside it is an index error in the engine's loop, which ends every request of
the verifier. vLLM checks some of them, some only after a stream has started, and takes
`true` and `1.0` for ids.
"""

from collections.abc import Sequence
from typing import Any

from replicas.errors import InvalidRequest
from replicas.verifier.request_body import Body

ID_FIELDS = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "tokens")

MAX_BIAS = 100.0
"""OpenAI's bound; vLLM cuts what lies beyond it without a word."""

_MOST_ID_DIGITS = 10


def check_token_ids(body: Body, vocab_size: int) -> None:
    """Looks at every field of a body that holds token ids.

    Raises:
        InvalidRequest: An id is not an integer of the vocabulary, or a prompt is neither
            text nor ids; names the field.
    """
    for name in ID_FIELDS:
        if isinstance(ids := body.get(name), list):
            _check_ids(ids, name, vocab_size)
    if isinstance(prompt := body.get("prompt"), list):
        _check_prompts(prompt, vocab_size)
    for key, bias in (body.get("logit_bias") or {}).items():
        if not _is_id_text(key, vocab_size):
            raise _out_of_vocabulary("logit_bias", vocab_size)
        if isinstance(bias, int | float) and not -MAX_BIAS <= bias <= MAX_BIAS:
            raise InvalidRequest(
                f"A bias in `logit_bias` must be between -{MAX_BIAS:g} and {MAX_BIAS:g}.",
                "logit_bias",
                "invalid_value",
            )


def _check_prompts(prompt: list[Any], vocab_size: int) -> None:
    kinds = set(map(type, prompt))
    if kinds == {str}:
        return
    if kinds == {list}:
        for ids in prompt:
            _check_prompt(ids, vocab_size)
    elif kinds and not kinds & {str, list, dict, type(None)}:
        _check_prompt(prompt, vocab_size)
    else:
        raise InvalidRequest(
            "`prompt` must be a text, an array of token ids, or a non-empty array of either.",
            "prompt",
            "invalid_type",
        )


def _check_prompt(ids: Sequence[Any], vocab_size: int) -> None:
    if not ids:
        raise InvalidRequest("A `prompt` has no tokens.", "prompt", "invalid_value")
    _check_ids(ids, "prompt", vocab_size)


def _check_ids(ids: Sequence[Any], name: str, vocab_size: int) -> None:
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= vocab_size):
        raise _out_of_vocabulary(name, vocab_size)


def _is_id_text(text: str, vocab_size: int) -> bool:
    # Python's int() also takes spaces, underscores and other scripts' digits.
    is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_ID_DIGITS
    return is_number and int(text) < vocab_size


def _out_of_vocabulary(name: str, vocab_size: int) -> InvalidRequest:
    return InvalidRequest(
        f"`{name}` holds what is not a token id: ids are integers from 0 to {vocab_size - 1}.",
        name,
        "invalid_value",
    )
