"""Requests as clients send them, and chat templates as models have them."""

from typing import Any

SYSTEM = {"role": "system", "content": "You are a careful assistant."}
USER = {"role": "user", "content": "What is 2 + 2?"}
ANSWER = {"role": "assistant", "content": "4, as ever."}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Weather "here" & <there>, für alle',
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
BARE_TOOL = {"function": {"parameters": {"type": "object"}, "name": "bare"}, "type": "function"}
STRICT_TOOL = {"type": "function", "function": {"strict": True, "name": "strict"}}
CALL = {
    "type": "function",
    "id": "call_1",
    "function": {"name": "weather", "arguments": '{"city": "Zürich", "days": 2}'},
}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "blue"}'}


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A chat request."""
    return {"messages": list(messages), **fields}


def text(value: str) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "text", "text": value}


CHATS: dict[str, dict[str, Any]] = {
    "one message": chat(USER),
    "system": chat(SYSTEM, USER),
    "empty content": chat({"role": "user", "content": ""}),
    "many turns": chat(SYSTEM, *[USER, ANSWER] * 5, USER),
    "no generation prompt": chat(USER, ANSWER, add_generation_prompt=False),
    "continue": chat(
        USER,
        {"role": "assistant", "content": "The answer is "},
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    "parts": chat({"role": "user", "content": [text("one"), text(" two\n"), text("three")]}),
    "system parts": chat({"role": "system", "content": [text("a"), text("b")]}, USER),
    "no parts": chat({"role": "user", "content": []}),
    "other languages": chat({"role": "user", "content": "日本語 👩‍👩‍👧 ñ e\u0301 \u200b العربية"}),
    "special tokens in text": chat({"role": "user", "content": "<|im_end|>\n<|im_start|>system"}),
    "white space": chat({"role": "user", "content": "  \n\t x \r\n "}),
    "names": chat({"role": "user", "name": "ada", "content": "hi"}),
    "tools": chat(USER, tools=[WEATHER]),
    "several tools": chat(SYSTEM, USER, tools=[WEATHER, BARE_TOOL, STRICT_TOOL]),
    "tools unused": chat(USER, tools=[WEATHER], tool_choice="none"),
    "tool calls": chat(USER, CALLING, RESULT, tools=[WEATHER]),
    "tool calls and text": chat(USER, {**CALLING, "content": "Let me see."}, RESULT, ANSWER, USER),
    "tool result in parts": chat(USER, CALLING, {**RESULT, "content": [text("blue"), text("sky")]}),
    "no tool calls": chat(USER, {**ANSWER, "tool_calls": []}, USER),
    "broken arguments": chat(
        USER,
        {**CALLING, "tool_calls": [{**CALL, "function": {"name": "w", "arguments": "{oops"}}]},
    ),
    "no arguments": chat(
        USER, {**CALLING, "tool_calls": [{**CALL, "function": {"name": "w", "arguments": ""}}]}
    ),
    "reasoning": chat(USER, {**ANSWER, "reasoning": "two and two"}, USER),
    "reasoning content": chat(USER, {**ANSWER, "reasoning_content": "two and two"}, USER),
    "template arguments": chat(USER, chat_template_kwargs={"enable_thinking": False, "mood": 3}),
    "reasoning effort": chat(USER, reasoning_effort="low"),
    "no reasoning": chat(USER, reasoning_effort="none"),
    "documents": chat(USER, documents=[{"title": "t", "text": "body"}]),
    "developer": chat({"role": "developer", "content": "Be brief."}, USER),
    "developer and system": chat(SYSTEM, USER, {"role": "developer", "content": "Be brief."}, USER),
    "billing header": chat(
        {"role": "system", "content": "x-anthropic-billing-header: cch=1;\nBe kind."}, USER
    ),
    "special tokens added": chat(USER, add_special_tokens=True),
}

COMPLETIONS: dict[str, dict[str, Any]] = {
    "text": {"prompt": "Once upon a time"},
    "ids": {"prompt": [5, 6, 7, 8, 9]},
    "one text of a list": {"prompt": ["Once upon a time"]},
    "ids in a list": {"prompt": [[5, 6, 7]]},
    "without special tokens": {"prompt": "Once", "add_special_tokens": False},
    "special token in text": {"prompt": "<|im_start|>user\nhi<|im_end|>"},
}

RESPONSES: dict[str, dict[str, Any]] = {
    "text": {"input": "Once upon a time"},
    "instructions": {"input": "Hi", "instructions": "Be kind."},
    "turns": {
        "input": [
            {"role": "user", "content": "Hi"},
            {"type": "message", "role": "assistant", "content": "Hello."},
            {"role": "user", "content": [{"type": "input_text", "text": "And?"}]},
        ]
    },
    "developer": {"input": [{"role": "developer", "content": "Short."}, USER]},
    "reasoning": {"input": "Hi", "reasoning": {"effort": "low"}},
    "template arguments": {"input": "Hi", "chat_template_kwargs": {"mood": "calm"}},
}

NOT_OURS: dict[str, tuple[dict[str, Any], str]] = {
    "a picture": (
        chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
        "media",
    ),
    "a part without a type": (chat({"role": "user", "content": [{"text": "x"}]}), "media"),
    "a number": (chat({"role": "user", "content": 7}), "message"),
    "no role": (chat({"content": "x"}), "message"),
    "no messages": (chat(), "message"),
    "messages that are none": ({"messages": ["hi"]}, "message"),
    "a template of its own": (chat(USER, chat_template="{{ 1 }}"), "template"),
    "an argument that means something else": (
        chat(USER, chat_template_kwargs={"tokenize": True}),
        "template",
    ),
    "Anthropic's system prompt": (chat(USER, system="Be kind."), "template"),
    "cut prompts": (chat(USER, truncate_prompt_tokens=5), "truncated"),
    "tools of the responses API": ({"input": "x", "tools": [{"type": "function"}]}, "template"),
    "a cut responses input": ({"input": "x", "truncation": "auto"}, "truncated"),
    "an answer told back": (
        {"input": [{"role": "assistant", "content": "x", "id": "msg_1", "status": "completed"}]},
        "message",
    ),
    "reasoning told back": ({"input": [{"type": "reasoning", "summary": []}]}, "message"),
    "a responses input that is none": ({"input": 7}, "message"),
    "nothing": ({}, "no_prompt"),
    "an empty prompt": ({"prompt": ""}, "no_prompt"),
    "ids that are none": ({"prompt": [1, "x"]}, "no_prompt"),
    "ids that fit nowhere": ({"prompt": [1 << 40]}, "tokenizer"),
}

PLAIN = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PARTS = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'text' %}[{{ part.text }}]{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}</tools>"
    "{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}"
    "{% if message.name %} {{ message.name }}{% endif %}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}{% for call in message.tool_calls or [] %}<call>{{ call | tojson }}"
    "{{ call.function.arguments | tojson }}</call>{% endfor %}"
    "{% if message.tool_call_id %}({{ message.tool_call_id }}){% endif %}<|im_end|>\n{% endfor %}"
    "{% for document in documents or [] %}{{ document.title }}: {{ document.text }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{{ reasoning_effort or '' }}{{ mood or '' }}{% endif %}"
)
DEVELOPER = PLAIN.replace(
    "{{ message['role'] }}", "{{ message['role'].replace('developer', 'dev') }}"
)
TEMPLATES = {"plain": PLAIN, "parts": PARTS, "tools": TOOLS, "developer": DEVELOPER}
