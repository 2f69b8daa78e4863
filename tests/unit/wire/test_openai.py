"""Reading OpenAI bodies: as lax as the engine, and never an exception but UnreadableCallError."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.call import Call, CallKind
from proxy.wire.openai import COPIES_MAX, TOKENS_MAX, UnreadableCallError
from proxy.wire.read_call import read_call

USER = {"role": "user", "content": "hi"}


def chat(**fields: Any) -> Call:
    return read_call(CallKind.CHAT, json.dumps({"model": "m", "messages": [USER]} | fields).encode())


def completion(**fields: Any) -> Call:
    return read_call(CallKind.COMPLETIONS, json.dumps({"model": "m", "prompt": "hi"} | fields).encode())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": None}, None),
        ({"max_tokens": "5"}, 5),
        ({"max_tokens": " 5.0 "}, 5),
        ({"max_tokens": 5.0}, 5),
        ({"max_tokens": True}, 1),
        ({"max_tokens": 0}, 1),
        ({"max_tokens": -1}, 1),
        ({"max_tokens": 10**40}, TOKENS_MAX),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
    ],
)
def test_output_limit_of_a_chat(fields: dict[str, Any], expected: int | None) -> None:
    assert chat(**fields).output_tokens_max == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, 16), ({"max_tokens": None}, None), ({"max_tokens": 0, "echo": True}, 1), ({"max_tokens": "9"}, 9)],
)
def test_output_limit_of_a_completion(fields: dict[str, Any], expected: int | None) -> None:
    assert completion(**fields).output_tokens_max == expected


@pytest.mark.parametrize("value", ["five", 5.5, [], {}, "NaN"])
def test_a_limit_the_engine_refuses_is_unreadable(value: Any) -> None:
    with pytest.raises(UnreadableCallError):
        chat(max_tokens=value)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([""], ("",)),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
        (["1", 2, 3.0, True], ((1, 2, 3, 1),)),
        ([["1"], [2]], ((1,), (2,))),
        (["1", "2"], ("1", "2")),
        ([[]], ((),)),
    ],
)
def test_prompts_of_every_kind(prompt: Any, expected: tuple[Any, ...]) -> None:
    assert completion(prompt=prompt).prompts == expected


@pytest.mark.parametrize("prompt", [None, "", [], 5, {}, ["a", 1], [["a"]], [None], [[1], "a"]])
def test_prompts_the_engine_refuses_are_unreadable(prompt: Any) -> None:
    with pytest.raises(UnreadableCallError):
        completion(prompt=prompt)


@pytest.mark.parametrize("messages", [None, "hi", {}, ["hi"], [None], 5])
def test_messages_that_are_no_list_of_objects_are_unreadable(messages: Any) -> None:
    with pytest.raises(UnreadableCallError):
        chat(messages=messages)


def test_embedded_prompts_are_told_by_size() -> None:
    call = completion(prompt=None, prompt_embeds=["aaaa", "bb"])
    assert call.prompt_embeds
    assert call.embeds_bytes == (4, 2)
    assert completion(prompt_embeds="abc").embeds_bytes == (3,)


def test_template_fields() -> None:
    call = chat(
        tools=[{"type": "function", "function": {"name": "f"}}],
        tool_choice="none",
        documents=[{"title": "t"}],
        chat_template_kwargs={"a": 1},
        reasoning_effort="low",
        add_generation_prompt="false",
        continue_final_message=1,
        add_special_tokens=True,
        chat_template="{{ x }}",
    )
    assert call.has_tools
    assert call.chat is not None
    assert call.chat.tools == ({"type": "function", "function": {"name": "f"}},)
    assert call.chat.documents == ({"title": "t"},)
    assert call.chat.template_kwargs == {"a": 1, "reasoning_effort": "low", "enable_thinking": True}
    assert not call.chat.add_generation_prompt
    assert call.chat.continue_final_message
    assert call.chat.add_special_tokens
    assert call.chat.chat_template == "{{ x }}"


def test_effort_sets_thinking_only_where_the_client_did_not() -> None:
    assert _kwargs(reasoning_effort="none") == {"reasoning_effort": "none", "enable_thinking": False}
    assert _kwargs(reasoning_effort="high", chat_template_kwargs={"enable_thinking": False})["enable_thinking"] is False
    assert _kwargs(reasoning_effort="high", chat_template_kwargs={"enable_thinking": None})["enable_thinking"] is None


def _kwargs(**fields: Any) -> dict[str, Any]:
    read = chat(**fields).chat
    assert read is not None
    return read.template_kwargs


@pytest.mark.parametrize("tools", [[], None, {}, "x", [1]])
def test_bad_or_empty_tools_read_as_none(tools: Any) -> None:
    assert not chat(tools=tools).has_tools


@pytest.mark.parametrize(
    ("call", "shares"),
    [
        (chat(), True),
        (chat(echo=True), False),
        (chat(prompt_logprobs=0), False),
        (completion(echo=True), True),
        (completion(echo=True, logprobs=0), False),
        (completion(prompt_logprobs=1), False),
    ],
)
def test_prompt_logprobs_rule_out_sharing(call: Call, shares: bool) -> None:
    assert call.shares_prefix is shares


@pytest.mark.parametrize(("value", "expected"), [(None, 1), (3, 3), ("2", 2), (0, 1), (-5, 1), (10**9, COPIES_MAX)])
def test_copies(value: Any, expected: int) -> None:
    assert chat(n=value).n == expected


@pytest.mark.parametrize(("value", "expected"), [(-1, -1), ("5", 5), (None, None), (-2, None), ([], None)])
def test_truncation(value: Any, expected: int | None) -> None:
    assert chat(truncate_prompt_tokens=value).truncate_prompt_tokens == expected


def test_stream_fields() -> None:
    call = chat(stream="yes", stream_options={"include_usage": 1, "continuous_usage_stats": "true"})
    assert (call.stream, call.usage_wanted, call.usage_continuous, call.has_stream_options) == (True, True, True, True)
    call = chat(stream=True, stream_options=None)
    assert (call.usage_wanted, call.has_stream_options) == (False, True)
    assert not chat(stream=None).stream


def test_other_fields() -> None:
    call = chat(priority="3", user="u", cache_salt="s", use_beam_search=True, response_format={"type": "json_object"})
    assert (call.priority, call.user, call.cache_salt, call.beam_search, call.has_response_format) == (3, "u", "s", True, True)
    assert chat(prompt_cache_key="k").prompt_cache_key == "k"
    assert chat(prompt_cache_key=7).prompt_cache_key is None


def test_media_parts_are_counted_and_their_bytes_are_not() -> None:
    parts = [
        {"type": "text", "text": "what"},
        "is",
        {"type": "image_url", "image_url": {"url": "data:" + "A" * 10_000}},
        {"image_url": "x"},
        {"type": "input_audio", "input_audio": {}},
        {"type": "text", "text": "t", "image_url": None},
    ]
    call = chat(messages=[{"role": "user", "content": parts}])
    assert call.media_items == 4
    assert call.prompt_bytes < 100


def test_prompt_bytes_are_utf8() -> None:
    assert completion(prompt=["é", "日本"]).prompt_bytes == 8
    assert chat(messages=[{"role": "user", "content": "é日"}]).prompt_bytes == len("user") + 5


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[],"max_tokens":1,"max_tokens":2}',
        '{"messages":[],"max_tokens":2}'.encode("utf-16"),
        b'\xef\xbb\xbf{"messages":[],"max_tokens":2}',
        b' {"messages":[],"max_tokens":2,"temperature":NaN,"seed":1e400} \n',
    ],
)
def test_json_that_only_pythons_reader_takes_is_read(body: bytes) -> None:
    assert read_call(CallKind.CHAT, body).output_tokens_max == 2


def test_lone_surrogates_are_read() -> None:
    assert completion(prompt="\ud800").prompt_bytes == 3


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b'"x"', b"\xff", b"[" * 100_000, b'{"a":' * 100_000])
def test_no_object_is_unreadable(body: bytes) -> None:
    with pytest.raises(UnreadableCallError):
        read_call(CallKind.CHAT, body)


FIELDS = st.sampled_from(
    ["messages", "prompt", "tools", "n", "max_tokens", "stream", "stream_options", "chat_template_kwargs", "documents", "echo",
     "truncate_prompt_tokens", "prompt_embeds", "reasoning_effort", "role", "content", "type", "text", "image_url", "priority",
     "input", "instructions", "system", "source", "tool_use_id", "thinking", "call_id", "status", "items", "query", "token_ids",
     "sampling_params", "tool", "definition", "name", "summary", "output", "inputs"]
)  # fmt: skip
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        [
            "user",
            "assistant",
            "system",
            "tool_use",
            "tool_result",
            "reasoning",
            "function_call",
            "tool_addition",
            "namespace",
            "custom",
        ]
    )
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(FIELDS | st.text(max_size=4), inner, max_size=5)
)
BODIES = st.dictionaries(FIELDS | st.text(max_size=4), VALUES, max_size=6)


@given(kind=st.sampled_from(CallKind), body=st.binary(max_size=200) | VALUES.map(json.dumps).map(str.encode))
def test_any_bytes_are_read_or_unreadable(kind: CallKind, body: bytes) -> None:
    try:
        call: Call | None = read_call(kind, body)
    except UnreadableCallError:
        call = None
    assert call is None or call.kind is kind or kind is CallKind.INVOCATION


@given(kind=st.sampled_from(CallKind), fields=BODIES)
def test_any_object_reads_into_sound_values(kind: CallKind, fields: dict[str, Any]) -> None:
    fields = {"messages": [USER], "prompt": "hi", "input": "hi", "query": "hi", "documents": ["a"], "items": ["a"]} | fields
    try:
        call = read_call(kind, json.dumps(fields).encode())
    except UnreadableCallError:
        return
    assert 1 <= call.n <= COPIES_MAX
    assert call.output_tokens_max is None or 1 <= call.output_tokens_max <= TOKENS_MAX
    assert call.prompt_bytes >= 0
    assert (call.chat is not None) >= (kind is CallKind.CHAT)
    assert call.prompts or call.embeds_bytes or call.chats
