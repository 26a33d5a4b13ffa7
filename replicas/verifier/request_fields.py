"""Every field of a request's body, and what becomes of it.

vLLM takes fields it does not know and fields it does not obey without a word. Here
none is ignored: each is obeyed, cannot change an answer, is set by the server, or is
refused by name. A test holds these tables against vLLM's own request models and
against the fields that OpenAI and Anthropic document, so that a new version of
either asks for a decision.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from replicas.verifier.routes import BodyKind


class Effect(Enum):
    """What an accepted field does."""

    OBEYED = "vLLM obeys it, or refuses by itself what it cannot do"
    INERT = "documented, and cannot change an answer"
    OURS = "the server decides it; what a client sends is dropped"


@dataclass(frozen=True)
class Only:
    """A field that is accepted where its value asks for nothing, and refused otherwise."""

    neutral: tuple[object, ...]
    why: str


Rule = Effect | Only
Rules = Mapping[str, Rule]


def _all(rule: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


def _obeyed(names: str) -> dict[str, Rule]:
    return _all(Effect.OBEYED, names)


def _inert(names: str) -> dict[str, Rule]:
    return _all(Effect.INERT, names)


_BEAM = "beam search ignores most sampling parameters and is not drafted for"
_RENDERING = "it belongs to vLLM's render endpoints, which are not served"
_WATERMARK = "this server adds no watermark"
_NO_STATE = "responses are not stored; send the whole conversation as `input`"
_NO_SUCH_SERVICE = "this server has no such service"

_ENGINE: Rules = {
    # The tenant decides what is shared, its class the order, the front door the rest.
    **_all(
        Effect.OURS,
        "cache_salt priority request_id session_id kv_transfer_params ec_transfer_params",
    ),
    # Filtered key by key, see `xargs_allowed` in the policy.
    **_obeyed("vllm_xargs"),
    "watermarking": Only((None, False), _WATERMARK),
    "mm_payload": Only((None, "tensors"), _RENDERING),
    "return_mm_kwargs": Only((None, True), _RENDERING),
}

_SAMPLING: Rules = {
    **_obeyed(
        "frequency_penalty logit_bias max_tokens n presence_penalty seed stop stream stream_options"
        " temperature top_p top_k min_p repetition_penalty stop_token_ids"
        " include_stop_str_in_output ignore_eos min_tokens skip_special_tokens"
        " spaces_between_special_tokens truncate_prompt_tokens truncation_side prompt_logprobs"
        " logprobs logprob_token_ids allowed_token_ids bad_words echo add_special_tokens"
        " response_format structured_outputs repetition_detection thinking_token_budget"
        " stream_interval return_tokens_as_token_ids return_token_ids"
    ),
    "use_beam_search": Only((False,), _BEAM),
    "length_penalty": Only((1.0,), "it belongs to beam search, which is not served"),
    "return_token_offsets": Only((None, False), _RENDERING),
    "routed_experts_prompt_start": Only((0,), "this server returns no expert routing"),
}

_OPENAI_ACCOUNT = _inert(
    "user metadata safety_identifier service_tier store prompt_cache_key prompt_cache_options"
    " prompt_cache_retention"
)

_CHAT: Rules = {
    **_ENGINE,
    **_SAMPLING,
    **_OPENAI_ACCOUNT,
    **_obeyed(
        "messages model top_logprobs max_completion_tokens tools tool_choice parallel_tool_calls"
        " reasoning_effort include_reasoning add_generation_prompt continue_final_message documents"
        " chat_template_kwargs media_io_kwargs mm_processor_kwargs return_prompt_text"
    ),
    "chat_template": Only((None,), "the template is the server's; it is code"),
    "audio": Only((None,), "this server answers in text"),
    "modalities": Only((None, ["text"]), "this server answers in text"),
    "function_call": Only((None, "none"), "use `tool_choice`"),
    "functions": Only((None, []), "use `tools`"),
    "moderation": Only((None,), _NO_SUCH_SERVICE),
    "prediction": Only((None,), "drafts are the server's own"),
    "verbosity": Only((None, "medium"), "this server does not steer length by it"),
    "web_search_options": Only((None,), _NO_SUCH_SERVICE),
}

_COMPLETION: Rules = {
    **_ENGINE,
    **_SAMPLING,
    **_OPENAI_ACCOUNT,
    **_obeyed("model prompt suffix"),
    "best_of": Only((None, 1), "use `n` and choose yourself"),
    "prompt_embeds": Only((None,), "tensors from clients are not loaded"),
}

_RESPONSES: Rules = {
    **_ENGINE,
    **_OPENAI_ACCOUNT,
    **_obeyed(
        "input model instructions max_output_tokens include include_reasoning reasoning text tools"
        " tool_choice parallel_tool_calls stream temperature top_p top_k min_p logit_bias"
        " top_logprobs truncation presence_penalty frequency_penalty repetition_penalty seed stop"
        " stop_token_ids ignore_eos skip_special_tokens include_stop_str_in_output"
        " structured_outputs chat_template_kwargs media_io_kwargs mm_processor_kwargs"
        " enable_response_messages"
    ),
    "stream_options": Only(
        (None, {}, {"include_obfuscation": True}, {"include_obfuscation": False}),
        "a responses stream has no options here",
    ),
    "background": Only((None, False), _NO_STATE),
    "background_options": Only((None,), _NO_STATE),
    "conversation": Only((None,), _NO_STATE),
    "previous_response_id": Only((None,), _NO_STATE),
    "previous_input_messages": Only((None,), _NO_STATE),
    "context_management": Only((None, []), _NO_STATE),
    "prompt": Only((None,), "prompt templates are not stored here"),
    "max_tool_calls": Only((None,), "this server calls no tools itself"),
    "moderation": Only((None,), _NO_SUCH_SERVICE),
    "access_programs": Only((None,), _NO_SUCH_SERVICE),
    "image": Only((None,), "this server answers in text"),
}

_COUNT_TOKENS: Rules = {
    **_inert("cache_control workspace_id user_profile_id"),
    **_obeyed("messages model output_config system thinking tool_choice tools"),
    **_obeyed("chat_template_kwargs"),
    "speed": Only((None, "standard"), "this server has one speed"),
}

_MESSAGES: Rules = {
    **_ENGINE,
    **_COUNT_TOKENS,
    **_inert("metadata service_tier inference_geo diagnostics"),
    **_obeyed("max_tokens stop_sequences stream temperature top_k top_p"),
    "container": Only((None,), _NO_SUCH_SERVICE),
    "context_management": Only((None,), _NO_SUCH_SERVICE),
    "mcp_servers": Only((None, []), _NO_SUCH_SERVICE),
}

FIELDS: Mapping[BodyKind, Rules] = {
    "chat": _CHAT,
    "completion": _COMPLETION,
    "responses": _RESPONSES,
    "messages": _MESSAGES,
    "count_tokens": _COUNT_TOKENS,
    "tokenize": {
        **_obeyed(
            "model prompt messages add_special_tokens add_generation_prompt continue_final_message"
            " return_token_strs tools chat_template_kwargs media_io_kwargs mm_processor_kwargs"
        ),
        "chat_template": Only((None,), "the template is the server's; it is code"),
    },
    "detokenize": _obeyed("model tokens"),
}

NESTED: Mapping[str, Rules] = {
    "stream_options": {
        **_obeyed("include_usage continuous_usage_stats"),
        **_inert("include_obfuscation"),
    },
    "structured_outputs": {
        **_obeyed("json regex choice grammar json_object structural_tag"),
        "disable_any_whitespace": Only((None, False), "vLLM takes it from the server only"),
        "disable_additional_properties": Only((None, False), "vLLM takes it from the server only"),
        "whitespace_pattern": Only((None,), "vLLM does not obey it"),
    },
    "response_format": _obeyed("type json_schema structures triggers format"),
    "response_format.json_schema": _obeyed("name description schema strict"),
    "repetition_detection": _obeyed("max_pattern_size min_pattern_size min_count"),
    "text": {
        **_obeyed("format"),
        "verbosity": Only((None, "medium"), "this server does not steer length by it"),
    },
    "text.format": _obeyed("type name description schema strict"),
    "output_config": _obeyed("effort format"),
}
"""Objects inside a body whose unknown keys would be lost without a word."""

_UNDRAFTED = "it cannot be used while this server speculates"

WITH_SPECULATION: Rules = {
    # vLLM refuses these two, without saying which; in a stream only after its start.
    "min_p": Only((None, 0), _UNDRAFTED),
    "logit_bias": Only((None, {}), _UNDRAFTED),
    # vLLM's rejection sampler loses them, and stops the engine when another request of
    # the same step asks for `logprobs`.
    "logprob_token_ids": Only((None, []), _UNDRAFTED),
}

REPLACED_BY = {
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
    "max_new_tokens": "max_tokens",
    "stop_words": "stop",
}
"""Fields of other or older servers, and what does the same here."""
