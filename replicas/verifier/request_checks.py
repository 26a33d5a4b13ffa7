"""Whether a request's body can be served, and the body that vLLM gets for it.

Pure: a body and the policy in, a new body or an error that names the field out.
What vLLM checks well by itself is left to it. Here stands what it takes without a
word, what it reports only after a stream has started, what it fails on with a Python
error, and what would hurt the other requests of the engine.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from replicas.errors import InvalidRequest, NoSuchModel
from replicas.verifier.constraints import check_constraints
from replicas.verifier.conversation import check_conversation
from replicas.verifier.policy import FrontDoorPolicy
from replicas.verifier.request_body import Body
from replicas.verifier.request_fields import (
    FIELDS,
    NESTED,
    REPLACED_BY,
    WITH_SPECULATION,
    Effect,
    Only,
    Rules,
)
from replicas.verifier.request_speculation import SPECULATION, parsed
from replicas.verifier.routes import GENERATING, BodyKind
from replicas.verifier.token_ids import check_token_ids

MAX_STOP_CHARS = 1024
"""Length of one stop string or bad word; each new token is compared with all of them."""

_LONGEST_SHOWN_NAME = 64
_INT64 = range(-(2**63), 2**63)

# What vLLM's validators take apart before they look at its type.
_OBJECTS = (
    *("response_format", "structured_outputs", "stream_options", "logit_bias", "vllm_xargs"),
    *("repetition_detection", "chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs"),
    *("text", "reasoning", "output_config", "thinking"),
)
_LISTS_OF_OBJECTS = ("messages", "tools", "documents")
_LISTS = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "bad_words", "stop_sequences")


def checked(body: Body, kind: BodyKind, policy: FrontDoorPolicy) -> Body:
    """The body that vLLM gets, less the cache salt.

    Args:
        body: As the client sent it; not changed.
        kind: Which request it is.
        policy: What this verifier can do.

    Raises:
        InvalidRequest: A field cannot be served; names it.
        NoSuchModel: `model` is not one that the policy knows.
    """
    rules = FIELDS[kind]
    if kind in GENERATING and policy.speculation:
        rules = {name: WITH_SPECULATION.get(name, rule) for name, rule in rules.items()}
    _check_fields(body, rules)
    _check_types(body)
    _check_model(body, kind, policy.model_names)
    _check_nested(body)
    check_token_ids(body, policy.vocab_size)
    _check_sequences(body, policy.max_sequences)
    _check_stops(body)
    _check_echo(body, kind)
    check_conversation(body, kind)
    check_constraints(body)
    passed = {name: value for name, value in body.items() if rules[name] is not Effect.OURS}
    xargs = passed.pop("vllm_xargs", None) or {}
    _check_speculation(xargs, policy.longest_draft)
    if allowed := {key: xargs[key] for key in xargs if key in policy.xargs_allowed}:
        passed["vllm_xargs"] = allowed
    return passed


def _check_fields(fields: Mapping[str, Any], rules: Rules, path: str = "") -> None:
    for name, value in fields.items():
        rule = rules.get(name)
        if rule is None:
            raise _unknown(name, rules, path)
        if isinstance(rule, Only) and value not in rule.neutral:
            raise InvalidRequest(
                f"`{path}{name}` is not supported here: {rule.why}.",
                path + name,
                "unsupported_parameter",
            )


def _unknown(name: str, known: Iterable[str], path: str) -> InvalidRequest:
    shown = path + name[:_LONGEST_SHOWN_NAME]
    nearest = REPLACED_BY.get(name) or next(iter(difflib.get_close_matches(name, known, n=1)), None)
    hint = f" Did you mean `{nearest}`?" if nearest else ""
    return InvalidRequest(f"Unknown parameter: `{shown}`.{hint}", shown, "unknown_parameter")


def _check_types(body: Body) -> None:
    for name, value in body.items():
        if value is None and name != "messages":
            continue
        if name in _OBJECTS:
            _expect(isinstance(value, dict), name, "an object")
        elif name in _LISTS_OF_OBJECTS:
            is_right = isinstance(value, list) and all(isinstance(item, dict) for item in value)
            _expect(is_right, name, "an array of objects")
        elif name in _LISTS:
            _expect(isinstance(value, list), name, "an array")
        elif name == "n":
            _expect(type(value) is int, name, "an integer")
        if type(value) is int:
            _expect(value in _INT64, name, "a number that fits into 64 bits")


def _expect(is_right: bool, name: str, what: str) -> None:
    if not is_right:
        raise InvalidRequest(f"`{name}` must be {what}.", name, "invalid_type")


def _check_model(body: Body, kind: BodyKind, known: frozenset[str]) -> None:
    model = body.get("model")
    if model is None and kind not in GENERATING:
        return
    if not model:
        raise InvalidRequest("`model` is missing.", "model", "missing_required_parameter")
    _expect(isinstance(model, str), "model", "a string")
    if known and model not in known:
        raise NoSuchModel(
            f"The model `{model[:_LONGEST_SHOWN_NAME]}` does not exist. "
            f"Served: {', '.join(sorted(known))}.",
            "model",
        )


def _check_nested(body: Body) -> None:
    for path, rules in NESTED.items():
        outer, _, inner = path.partition(".")
        value = body.get(outer)
        if inner and value is not None:
            value = value.get(inner)
        if isinstance(value, dict):
            _check_fields(value, rules, f"{path}.")


def _check_echo(body: Body, kind: BodyKind) -> None:
    """vLLM forgets the echo where it returns token ids, which name the prompt already."""
    if kind == "completion" and body.get("echo") and body.get("return_token_ids"):
        raise InvalidRequest(
            "`echo` cannot be combined with `return_token_ids`, which returns the prompt's ids.",
            "echo",
            "unsupported_parameter",
        )


def _check_speculation(xargs: Mapping[str, Any], longest: int) -> None:
    if SPECULATION in xargs and parsed(xargs[SPECULATION], longest) is None:
        raise InvalidRequest(
            f'`vllm_xargs.{SPECULATION}` must be "auto", "off" or a whole number of draft tokens '
            f"from 0 to {longest}.",
            f"vllm_xargs.{SPECULATION}",
            "invalid_value",
        )


def _check_sequences(body: Body, most: int) -> None:
    prompt = body.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and isinstance(prompt[0], str | list) else 1
    if (sequences := prompts * (body.get("n") or 1)) > most:
        raise InvalidRequest(
            f"One request may ask for at most {most} answers (prompts times `n`), not {sequences}.",
            "n" if prompts == 1 else "prompt",
            "invalid_value",
        )


def _check_stops(body: Body) -> None:
    for name in ("stop", "stop_sequences", "bad_words"):
        value = body.get(name)
        for text in value if isinstance(value, list) else (value,):
            if isinstance(text, str) and len(text) > MAX_STOP_CHARS:
                raise InvalidRequest(
                    f"An entry of `{name}` is longer than {MAX_STOP_CHARS} characters.",
                    name,
                    "invalid_value",
                )
