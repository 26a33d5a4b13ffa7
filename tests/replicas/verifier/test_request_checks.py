"""A field is obeyed, without effect by nature, the server's, or refused by name."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.errors import InvalidRequest, NoSuchModel
from replicas.verifier.constraints import MAX_CONSTRAINT_BYTES
from replicas.verifier.front_door import FrontDoorPolicy
from replicas.verifier.request_checks import MAX_STOP_CHARS, checked
from replicas.verifier.request_fields import FIELDS, WITH_SPECULATION, Effect, Only
from replicas.verifier.routes import GENERATING, BodyKind

V = 512
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}
BASES: dict[BodyKind, dict[str, Any]] = {
    "chat": CHAT,
    "completion": TEXT,
    "responses": {"model": "m", "input": "hi"},
    "messages": {**CHAT, "max_tokens": 5},
    "count_tokens": CHAT,
    "tokenize": TEXT,
    "detokenize": {"tokens": [1]},
}


def refusal(body: dict[str, Any], kind: BodyKind, policy: FrontDoorPolicy) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        checked(body, kind, policy)
    return caught.value


@pytest.mark.parametrize("kind", BASES)
def test_a_plain_request_passes_as_it_is(kind: BodyKind, policy: FrontDoorPolicy) -> None:
    assert checked(BASES[kind], kind, policy) == BASES[kind]


@pytest.mark.parametrize("kind", BASES)
def test_an_unknown_field_is_refused_by_name(kind: BodyKind, policy: FrontDoorPolicy) -> None:
    refused = refusal({**BASES[kind], "frobnicate": None}, kind, policy)
    assert (refused.param, refused.code) == ("frobnicate", "unknown_parameter")


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("temprature", "temperature"),
        ("guided_json", "structured_outputs.json"),
        ("max_new_tokens", "max_tokens"),
    ],
)
def test_an_unknown_field_is_told_the_known_one(
    field: str, hint: str, policy: FrontDoorPolicy
) -> None:
    assert f"Did you mean `{hint}`?" in str(refusal({**CHAT, field: 1}, "chat", policy))


def test_a_name_that_is_a_book_is_cut(policy: FrontDoorPolicy) -> None:
    """What a client sends does not come back in full."""
    assert len(str(refusal({**CHAT, "x" * 10_000: 1}, "chat", policy))) < 200


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("stream_options.include_usages", {"include_usages": True}),
        ("structured_outputs.patern", {"regex": "a", "patern": "b"}),
        ("structured_outputs.whitespace_pattern", {"json": {}, "whitespace_pattern": " "}),
        (
            "response_format.json_schema.shema",
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "shema": {}}},
        ),
        ("repetition_detection.window", {"window": 3}),
    ],
)
def test_a_field_inside_an_object_is_refused_too(
    path: str, value: object, policy: FrontDoorPolicy
) -> None:
    assert refusal({**CHAT, path.split(".")[0]: value}, "chat", policy).param == path


@pytest.mark.parametrize(
    ("kind", "field", "rule"),
    [
        (kind, field, rule)
        for kind, rules in FIELDS.items()
        for field, rule in rules.items()
        if isinstance(rule, Only)
    ],
)
def test_a_field_without_effect_passes_at_its_neutral_values_only(
    kind: BodyKind, field: str, rule: Only, policy: FrontDoorPolicy
) -> None:
    for value in rule.neutral:
        assert field in checked({**BASES[kind], field: value}, kind, policy)
    refused = refusal({**BASES[kind], field: "something"}, kind, policy)
    assert (refused.param, refused.code) == (field, "unsupported_parameter")


@pytest.mark.parametrize("kind", GENERATING)
@given(value=st.none() | st.text() | st.integers(0, 9) | st.dictionaries(st.text(), st.text()))
def test_what_the_server_decides_never_passes(kind: BodyKind, value: object) -> None:
    """Whatever a client sends as salt, priority, id or transfer parameters."""
    policy = FrontDoorPolicy(V, "w0", "auto")
    ours = {field: value for field, rule in FIELDS[kind].items() if rule is Effect.OURS}
    assert "cache_salt" in ours
    body = {**BASES[kind], **ours}
    assert checked(body, kind, policy) == BASES[kind]
    assert body == {**BASES[kind], **ours}, "the client's body is left alone"


def test_extension_arguments_pass_key_by_key(policy: FrontDoorPolicy) -> None:
    """Only those that the policy names reach the engine."""
    body = {**CHAT, "vllm_xargs": {"class": "batch", "session_id": "x"}}
    assert "vllm_xargs" not in checked(body, "chat", policy)
    allowed = replace(policy, xargs_allowed=frozenset({"class"}))
    assert checked(body, "chat", allowed)["vllm_xargs"] == {"class": "batch"}


@pytest.mark.parametrize(
    ("field", "value"), [("min_p", 0.1), ("logit_bias", {"1": 1}), ("logprob_token_ids", [1])]
)
def test_what_speculation_cannot_do_is_refused_while_it_is_on(
    field: str, value: object, policy: FrontDoorPolicy
) -> None:
    """By name, and before a stream starts."""
    assert field in WITH_SPECULATION
    body = {**TEXT, field: value}
    assert checked(body, "completion", policy) == body
    assert refusal(body, "completion", replace(policy, speculation=True)).param == field


BAD_IDS = [-1, V, 2**31, 2**63, 2**200, True, 1.0, "1", None, [1]]


@pytest.mark.parametrize("bad", BAD_IDS)
@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids", "logprob_token_ids"])
def test_an_id_outside_the_vocabulary_is_refused(
    field: str, bad: object, policy: FrontDoorPolicy
) -> None:
    """One such id is an index error in the engine, for everybody."""
    assert refusal({**TEXT, field: [0, bad]}, "completion", policy).param == field
    assert checked({**TEXT, field: [0, V - 1]}, "completion", policy)[field] == [0, V - 1]


@pytest.mark.parametrize("bad", BAD_IDS)
def test_a_prompt_of_ids_stays_within_the_vocabulary(bad: object, policy: FrontDoorPolicy) -> None:
    for prompt in ([0, bad], [[0], [0, bad]]):
        assert refusal({**TEXT, "prompt": prompt}, "completion", policy).param == "prompt"
    assert refusal({"tokens": [bad]}, "detokenize", policy).param == "tokens"


@pytest.mark.parametrize("prompt", [["a", "b"], [0, V - 1], [[0, V - 1], [1]]])
def test_prompts_of_every_kind_pass(prompt: object, policy: FrontDoorPolicy) -> None:
    assert checked({**TEXT, "prompt": prompt}, "completion", policy)["prompt"] == prompt


@pytest.mark.parametrize("prompt", [[], [[]], [[1], []], [{}], [None], ["a", 1], ["a", ["b"]]])
def test_a_prompt_without_tokens_is_refused(prompt: object, policy: FrontDoorPolicy) -> None:
    assert refusal({**TEXT, "prompt": prompt}, "completion", policy).param == "prompt"


@pytest.mark.parametrize(
    "key", ["-1", str(V), str(2**31), str(2**63), "9" * 5000, "", " 1", "1_0", "1.5", "x", "१"]
)
def test_a_bias_is_for_a_token_of_the_vocabulary(key: str, policy: FrontDoorPolicy) -> None:
    assert refusal({**CHAT, "logit_bias": {key: 1}}, "chat", policy).param == "logit_bias"
    assert checked({**CHAT, "logit_bias": {str(V - 1): 1}}, "chat", policy)


@pytest.mark.parametrize("bias", [100.5, -101, 2**70])
def test_a_bias_beyond_its_bounds_is_refused(bias: float, policy: FrontDoorPolicy) -> None:
    """vLLM would cut it without a word."""
    assert refusal({**CHAT, "logit_bias": {"1": bias}}, "chat", policy).param == "logit_bias"


@given(st.lists(st.integers(-2, V + 1), max_size=8))
def test_ids_pass_exactly_when_all_are_in_the_vocabulary(ids: list[int]) -> None:
    policy, body = FrontDoorPolicy(V, "w0", "auto"), {**TEXT, "stop_token_ids": ids}
    if all(0 <= token < V for token in ids):
        assert checked(body, "completion", policy) == body
    else:
        refusal(body, "completion", policy)


@pytest.mark.parametrize("field", ["seed", "top_k", "max_tokens", "min_tokens", "prompt_logprobs"])
def test_an_integer_that_no_engine_message_can_hold_is_refused(
    field: str, policy: FrontDoorPolicy
) -> None:
    assert refusal({**TEXT, field: 2**63}, "completion", policy).param == field


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({**CHAT, "messages": {"role": "user"}}, "messages"),
        ({**CHAT, "messages": ["hi"]}, "messages"),
        ({**CHAT, "messages": None}, "messages"),
        ({**CHAT, "messages": [{"role": "user", "tool_calls": 1}]}, "messages[0].tool_calls"),
        ({**CHAT, "tools": "all"}, "tools"),
        ({**CHAT, "tools": [{}]}, "tools[0].function"),
        ({**CHAT, "tools": [{"function": "f"}]}, "tools[0].function"),
        ({**CHAT, "response_format": "json"}, "response_format"),
        (
            {**CHAT, "response_format": {"type": "json_schema"}},
            "response_format.json_schema.schema",
        ),
        ({**CHAT, "structured_outputs": "x"}, "structured_outputs"),
        ({**CHAT, "structured_outputs": {}}, "structured_outputs"),
        ({**CHAT, "structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        (
            {
                **CHAT,
                "structured_outputs": {"json": {}},
                "response_format": {"type": "json_object"},
            },
            "structured_outputs",
        ),
        ({**CHAT, "logit_bias": [1]}, "logit_bias"),
        ({**CHAT, "n": "4000"}, "n"),
        ({**CHAT, "n": True}, "n"),
        ({**CHAT, "model": ["m"]}, "model"),
        ({**CHAT, "model": ""}, "model"),
        ({"messages": []}, "model"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(
    body: dict[str, Any], param: str, policy: FrontDoorPolicy
) -> None:
    """vLLM's validators would fail on it with a Python error."""
    assert refusal(body, "chat", policy).param == param


def test_answers_of_one_request_are_bounded(policy: FrontDoorPolicy) -> None:
    """Prompts times `n`, so that neither is a way round the other."""
    few = replace(policy, max_sequences=4)
    assert checked({**TEXT, "prompt": ["a", "b"], "n": 2}, "completion", few)
    assert refusal({**TEXT, "n": 5}, "completion", few).param == "n"
    assert refusal({**TEXT, "prompt": [[1]] * 3, "n": 2}, "completion", few).param == "prompt"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("structured_outputs", {"json": {"enum": ["x" * MAX_CONSTRAINT_BYTES]}}),
        ("structured_outputs", {"regex": "x" * MAX_CONSTRAINT_BYTES}),
        (
            "response_format",
            {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"enum": ["x" * MAX_CONSTRAINT_BYTES]}},
            },
        ),
        (
            "tools[0]",
            [{"function": {"name": "f", "parameters": {"enum": ["x" * MAX_CONSTRAINT_BYTES]}}}],
        ),
    ],
)
def test_a_schema_that_is_a_book_is_refused(
    field: str, value: object, policy: FrontDoorPolicy
) -> None:
    """It is turned into a grammar while every stream of the verifier waits."""
    name = field.removesuffix("[0]")
    assert refusal({**CHAT, name: value}, "chat", policy).param == field


@pytest.mark.parametrize("field", ["stop", "bad_words"])
def test_a_stop_string_that_is_a_book_is_refused(field: str, policy: FrontDoorPolicy) -> None:
    body = {**CHAT, field: ["x" * (MAX_STOP_CHARS + 1)]}
    assert refusal(body, "chat", policy).param == field
    assert checked({**CHAT, field: ["x" * MAX_STOP_CHARS]}, "chat", policy)


@pytest.mark.parametrize(
    ("part", "param"),
    [
        (1, "messages[0].content"),
        (None, "messages[0].content"),
        ({"type": "text", "text": 1}, "messages[0].content.text"),
        ({"type": "image_embeds", "image_embeds": "AA=="}, "messages[0].content"),
        ({"prompt_embeds": "AA=="}, "messages[0].content"),
        ({"type": "image_url", "image_url": None, "uuid": "theirs"}, "messages[0].content.uuid"),
    ],
)
def test_a_part_of_a_message_is_text_or_a_plain_object(
    part: object, param: str, policy: FrontDoorPolicy
) -> None:
    """Never a tensor, and never the name of what another tenant's request has cached."""
    body = {**CHAT, "messages": [{"role": "user", "content": ["hi", {"text": "x"}, part]}]}
    assert refusal(body, "chat", policy).param == param


@pytest.mark.parametrize("kind", ["mcp", "web_search", "code_interpreter", None])
def test_a_tool_that_nobody_would_run_is_refused(kind: str | None, policy: FrontDoorPolicy) -> None:
    """vLLM would leave it out of the prompt and answer without it."""
    body = {**BASES["responses"], "tools": [{"type": "function", "name": "f"}, {"type": kind}]}
    assert refusal(body, "responses", policy).param == "tools[1].type"


def test_a_model_that_is_not_served_is_refused_where_the_names_are_known(
    policy: FrontDoorPolicy,
) -> None:
    known = replace(policy, model_names=frozenset({"m", "adapter"}))
    assert checked(CHAT, "chat", known)
    with pytest.raises(NoSuchModel, match="adapter, m") as caught:
        checked({**CHAT, "model": "other"}, "chat", known)
    assert caught.value.param == "model"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@pytest.mark.parametrize("kind", BASES)
@given(data=st.data())
def test_any_value_in_any_field_passes_or_is_refused(kind: BodyKind, data: st.DataObject) -> None:
    """No body makes the checks themselves fail."""
    names = st.sampled_from(sorted(FIELDS[kind])) | st.text(max_size=5)
    fields = data.draw(st.dictionaries(names, JSON_VALUES, max_size=4))
    try:
        checked({**BASES[kind], **fields}, kind, FrontDoorPolicy(V, "w0", "auto", speculation=True))
    except InvalidRequest as refused:
        assert refused.message
        json.dumps(refused.message)


@pytest.mark.parametrize("wish", ["auto", "off", 0, 3, 4])
def test_a_request_may_say_how_much_is_drafted_for_it(policy: FrontDoorPolicy, wish: Any) -> None:
    """The engine gets it as it is."""
    body = {**CHAT, "vllm_xargs": {"paceline_speculation": wish}}
    passed = checked(body, "chat", replace(policy, longest_draft=4))
    assert passed["vllm_xargs"] == {"paceline_speculation": wish}


@pytest.mark.parametrize("wish", ["on", "AUTO", "3", -1, 5, 1.0, True, None, [], {}])
def test_a_wrong_wish_for_drafts_is_named(policy: FrontDoorPolicy, wish: Any) -> None:
    """With what would be right."""
    body = {**CHAT, "vllm_xargs": {"paceline_speculation": wish}}
    with pytest.raises(InvalidRequest, match="from 0 to 4") as error:
        checked(body, "chat", replace(policy, longest_draft=4))
    assert error.value.param == "vllm_xargs.paceline_speculation"


def test_a_client_cannot_set_its_class(policy: FrontDoorPolicy) -> None:
    """That is the front door's to say."""
    body = {**CHAT, "vllm_xargs": {"paceline_class": "interactive", "paceline_speculation": 1}}
    assert checked(body, "chat", policy)["vllm_xargs"] == {"paceline_speculation": 1}
