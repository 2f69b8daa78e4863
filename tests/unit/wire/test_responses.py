"""Responses bodies become the chats that the engine makes of them."""

import json
from typing import Any

import pytest

from proxy.wire.call import Call, CallKind, ChatPrompt
from proxy.wire.lax import UnreadableCallError
from proxy.wire.read_call import read_call

USER = {"role": "user", "content": "weather?"}
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}}


def read(**fields: Any) -> Call:
    return read_call(CallKind.RESPONSES, json.dumps({"model": "m", "input": "hi"} | fields).encode())


def chat_of(**fields: Any) -> ChatPrompt:
    chat = read(**fields).chat
    assert chat is not None
    return chat


def test_what_is_read() -> None:
    call = read(stream=True, max_output_tokens=7, user="u", background=True, priority=3, text={"format": {}}, n=4)
    assert (call.model, call.stream, call.output_tokens_max, call.user, call.priority) == ("m", True, 7, "u", 3)
    assert call.background
    assert call.has_response_format
    assert call.usage_wanted
    assert call.n == 1  # the route knows no such field
    assert call.chat is not None
    assert call.chat.messages == ({"role": "user", "content": "hi"},)
    assert call.chat.add_special_tokens


def test_instructions_come_first() -> None:
    assert chat_of(instructions="Be brief.", input=[USER]).messages == ({"role": "system", "content": "Be brief."}, USER)


def test_the_items_of_one_turn_are_one_message() -> None:
    items = [
        USER,
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]},
        {"type": "function_call", "call_id": "c", "namespace": "ns", "name": "look", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "d", "name": "free", "input": "é"},
        {"type": "function_call_output", "call_id": "c", "output": "sunny"},
        {"role": "assistant", "content": "Sunny."},
        {"role": "assistant", "content": "Or so."},
    ]
    call = read(input=items)
    assert call.countable
    assert call.chat is not None
    assert call.chat.messages == (
        USER,
        {"role": "assistant", "reasoning": "hm", "content": "I look", "tool_calls": [
            {"id": "c", "function": {"name": "ns__look", "arguments": "{}"}, "type": "function"},
            {"id": "d", "function": {"name": "free", "arguments": '{"input": "é"}'}, "type": "function"}]},
        {"role": "tool", "content": "sunny", "tool_call_id": "c"},
        {"role": "assistant", "content": "Sunny."},
        {"role": "assistant", "content": "Or so."},
    )  # fmt: skip


def test_an_unfinished_last_message_is_continued() -> None:
    last = {"type": "message", "role": "assistant", "status": "incomplete", "content": [{"type": "output_text", "text": "It"}]}
    chat = chat_of(input=[USER, last])
    assert chat.continue_final_message
    assert not chat.add_generation_prompt
    assert not chat_of(input=[USER, last | {"status": "completed"}]).continue_final_message


def test_tools_that_the_model_is_shown() -> None:
    declared = [FUNCTION, {"type": "namespace", "name": "ns", "tools": [FUNCTION]}, {"type": "custom", "name": "free"},
                {"type": "web_search_preview"}]  # fmt: skip
    call = read(tools=declared)
    assert call.chat is not None
    assert call.chat.tools is not None
    assert [tool["function"]["name"] for tool in call.chat.tools] == ["look", "ns__look", "free"]
    assert call.has_tools


@pytest.mark.parametrize(("truncation", "kept"), [("disabled", None), ("auto", -1), (None, -1)])
def test_truncation(truncation: str | None, kept: int | None) -> None:
    assert read(truncation=truncation).truncate_prompt_tokens == kept
    assert read().truncate_prompt_tokens is None


def test_what_cannot_be_counted_says_so() -> None:
    assert not read(previous_response_id="resp_1").countable
    assert not read(input=[{"type": "item_reference", "id": "x"}]).countable
    assert not read(previous_input_messages=[{"role": "user"}]).countable
    assert read(input=[{"type": "item_reference", "id": "x" * 500}]).prompt_bytes > 500


def test_media() -> None:
    call = read(
        input=[{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}, {"type": "input_text", "text": "a"}]}]
    )
    assert call.media == (("image", 1),)


@pytest.mark.parametrize("given", [None, 3, [1], {"a": 1}])
def test_no_input(given: Any) -> None:
    with pytest.raises(UnreadableCallError):
        read(input=given)
