"""Anthropic bodies become the chats that the engine makes of them."""

import json
from typing import Any

import pytest

from proxy.wire.call import Call, CallKind, ChatPrompt
from proxy.wire.lax import UnreadableCallError
from proxy.wire.read_call import read_call

USER = {"role": "user", "content": "weather?"}
TOOL = {"name": "look", "input_schema": {"properties": {}}}


def read(**fields: Any) -> Call:
    return read_call(CallKind.MESSAGES, json.dumps({"model": "m", "max_tokens": 9, "messages": [USER]} | fields).encode())


def chat_of(**fields: Any) -> ChatPrompt:
    chat = read(**fields).chat
    assert chat is not None
    return chat


def test_what_is_read() -> None:
    call = read(stream=True, metadata={"user_id": "u"}, cache_salt="s", output_config={"effort": "low", "format": {}})
    assert (call.model, call.stream, call.output_tokens_max, call.user, call.cache_salt) == ("m", True, 9, "u", "s")
    assert call.usage_wanted  # its stream always tells
    assert call.has_response_format
    assert call.countable
    assert call.chat is not None
    assert call.chat.template_kwargs == {"reasoning_effort": "low", "enable_thinking": True}
    assert call.prompt_bytes == len("user") + len("weather?")


def test_system_texts_are_joined_and_the_billing_header_is_left_out() -> None:
    blocks = [{"type": "text", "text": text} for text in ("x-anthropic-billing-header: 1", "Be", "brief")]
    late = {"role": "system", "content": blocks}
    assert chat_of(system=blocks, messages=[USER, late]).messages == (
        {"role": "system", "content": "Bebrief"}, USER, {"role": "system", "content": "Bebrief"},
    )  # fmt: skip
    assert chat_of(messages=[{"role": "system", "content": []}, USER]).messages == (USER,)
    assert chat_of().merges_system


def test_one_text_block_is_text_and_several_are_parts() -> None:
    one, two = {"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {}}
    assert chat_of(messages=[{"role": "user", "content": [one]}]).messages == ({"role": "user", "content": "a"},)
    (message,) = chat_of(messages=[{"role": "user", "content": [one, two]}]).messages
    assert message["content"] == [one, {"type": "text", "text": "b"}]


def test_an_agents_turn() -> None:
    turn = {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "I look"}, {"type": "tool_use", "id": "t", "name": "look", "input": {"a": 1}},
    ]}  # fmt: skip
    result = {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image", "source": {"data": "QUJD"}},
            {"type": "tool_reference", "tool_name": "other"},
        ]},
        {"type": "text", "text": "and?"},
    ]}  # fmt: skip
    call = read(messages=[USER, turn, result])
    assert call.chat is not None
    assert call.chat.messages == (
        USER,
        {"role": "assistant", "reasoning": "hm", "content": "I look", "tool_calls": [
            {"id": "t", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}]},
        {"role": "tool", "tool_call_id": "t", "content": "a\nb"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,QUJD"}}]},
        {"role": "tool", "tool_call_id": "t", "content": [{"type": "tool_reference", "name": "other"}]},
        {"role": "user", "content": "and?"},
    )  # fmt: skip
    assert call.media == (("image", 1),)


def test_a_users_message_of_results_alone_leaves_no_empty_one() -> None:
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]}
    assert chat_of(messages=[result]).messages == ({"role": "tool", "tool_call_id": "t", "content": "ok"},)


def test_tools_in_effect_at_the_end() -> None:
    added = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {**TOOL, "name": "late"}}}
    removed = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "look"}}
    tools = chat_of(tools=[TOOL], messages=[{"role": "system", "content": [added, removed]}, USER]).tools
    assert tools is not None
    assert [tool["function"]["name"] for tool in tools] == ["late"]
    assert tools[0]["function"]["parameters"] == {"properties": {}, "type": "object"}
    assert chat_of(tools=[]).tools is None


def test_thinking_that_is_off_is_left_to_the_template() -> None:
    assert chat_of(thinking={"type": "disabled"}).thinking_off
    assert not chat_of(thinking={"type": "adaptive"}).thinking_off


def test_an_unknown_block_is_not_counted_as_if_it_were_nothing() -> None:
    assert not read(messages=[{"role": "user", "content": [{"type": "hologram"}]}]).countable


@pytest.mark.parametrize("messages", [None, [], "hi", [1]])
def test_no_messages(messages: Any) -> None:
    with pytest.raises(UnreadableCallError):
        read(messages=messages)
