"""Bodies of every route that takes KV, as the tests against the real engine send them."""

from typing import Any

from proxy.wire.call import CallKind

Bodies = dict[str, dict[str, Any]]

ASKS = {"role": "user", "content": "What is the weather in Zürich?"}
LOOK = {
    "name": "get_weather",
    "description": "Says what it is like outside.",
    "input_schema": {"properties": {"city": {"type": "string"}}},
}
CALLS = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "They ask for the weather.", "signature": "x"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Zürich"}},
    ],
}
RESULT = {
    "role": "user",
    "content": [
        {
            "type": "tool_result",
            "tool_use_id": "t1",
            "content": [{"type": "text", "text": "sunny"}, {"type": "text", "text": "warm"}],
        },
        {"type": "text", "text": "And tomorrow?"},
    ],
}
ADDED = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": LOOK | {"name": "later"}}}
REMOVED = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "get_weather"}}
BLOCKS = [{"type": "text", "text": text} for text in ("x-anthropic-billing-header: a=b", "Be", "brief")]

MESSAGES: Bodies = {
    "plain": {"messages": [ASKS]},
    "system": {"system": "Be brief.", "messages": [ASKS]},
    "system in blocks": {"system": BLOCKS, "messages": [ASKS]},
    "late system": {"system": "One", "messages": [ASKS, {"role": "assistant", "content": "Sunny"}, {"role": "system", "content": "Two"}]},
    "blocks": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
    "tools": {"messages": [ASKS], "tools": [LOOK]},
    "an agent's turn": {"messages": [ASKS, CALLS, RESULT], "tools": [LOOK]},
    "a result that the assistant says": {
        "messages": [ASKS, {"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "text"}]}, ASKS],
    },
    "redacted thinking": {
        "messages": [ASKS, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "zz"}, BLOCKS[1]]}, ASKS],
    },
    "a tool removed": {"messages": [{"role": "system", "content": [REMOVED]}, ASKS], "tools": [LOOK, LOOK | {"name": "other"}]},
    "a tool added": {"messages": [{"role": "system", "content": [BLOCKS[1], ADDED]}, ASKS], "tools": [LOOK]},
    "thinking off": {"messages": [ASKS], "thinking": {"type": "disabled"}},
    "effort": {"messages": [ASKS], "output_config": {"effort": "high"}},
    "begun answer": {"messages": [ASKS, {"role": "assistant", "content": "It is"}]},
    "template arguments": {"messages": [ASKS], "chat_template_kwargs": {"enable_thinking": False}},
}  # fmt: skip

FUNCTION = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
TURN = [
    {"role": "user", "content": "weather?"},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]},
    {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Zürich"}'},
    {"type": "function_call", "call_id": "c2", "name": "get_weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    {"type": "function_call_output", "call_id": "c2", "output": "rain"},
    {"role": "assistant", "content": "So"},
    {"role": "user", "content": "ok"},
]
CUSTOM = [
    {"role": "user", "content": "hi"},
    {"type": "custom_tool_call", "call_id": "c1", "name": "free", "input": "abc"},
    {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
]
UNFINISHED = {
    "type": "message",
    "role": "assistant",
    "status": "incomplete",
    "content": [{"type": "output_text", "text": "Well, it"}],
}

RESPONSES: Bodies = {
    "text": {"input": "Hello there, naïve 🙂"},
    "instructions": {"input": "Hello", "instructions": "Be brief."},
    "parts": {"input": [{"role": "developer", "content": "dev"},
                        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}]},
    "typed": {"input": [{"type": "message", "role": "user", "content": "Hello"}]},
    "tools": {"input": "Hello", "tools": [FUNCTION, FUNCTION | {"name": "strict", "strict": True}]},
    "namespace": {"input": "hi", "tools": [{"type": "namespace", "name": "ns", "description": "d", "tools": [FUNCTION]}]},
    "custom tool": {"input": "hi", "tools": [{"type": "custom", "name": "free", "description": "any text"}]},
    "a tool that is not shown": {"input": "hi", "tools": [{"type": "web_search_preview"}]},
    "an agent's turn": {"input": TURN, "tools": [FUNCTION]},
    "a custom tool's turn": {"input": CUSTOM},
    "effort": {"input": "Hello", "reasoning": {"effort": "high"}},
    "no effort": {"input": "Hello", "reasoning": {"effort": "none"}},
    "truncation": {"input": "word " * 300, "truncation": "auto"},
    "continued": {"input": [{"role": "user", "content": "Hello"}, UNFINISHED]},
    "template arguments": {"input": "hi", "chat_template_kwargs": {"enable_thinking": False}},
}  # fmt: skip
OTHERS: dict[CallKind, Bodies] = {
    CallKind.CHAT_BATCH: {"two": {"messages": [[ASKS], [{"role": "system", "content": "x"}, ASKS]], "max_tokens": 1}},
    CallKind.GENERATE: {"ids": {"token_ids": [5, 6, 7, 8], "sampling_params": {"max_tokens": 1}}},
    CallKind.SCORING: {"ids": {"query": [1, 2], "items": [[3], [4, 5]], "label_token_ids": [1, 2]}},
}
ALL: list[tuple[CallKind, str, dict[str, Any]]] = [
    *((CallKind.MESSAGES, name, {"max_tokens": 1} | body) for name, body in MESSAGES.items()),
    *((CallKind.RESPONSES, name, {"max_output_tokens": 1} | body) for name, body in RESPONSES.items()),
    *((kind, name, body) for kind, bodies in OTHERS.items() for name, body in bodies.items()),
]
