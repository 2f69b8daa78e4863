"""Asking for usage changes one member of the body and no other byte."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.call import Call, CallKind
from proxy.wire.inject import inject_usage, with_member
from proxy.wire.read_call import read_call

MEMBER = b'"stream_options":{"include_usage":true}'


def streaming(*, has_options: bool) -> Call:
    return Call(kind=CallKind.CHAT, model="m", stream=True, has_stream_options=has_options)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"a":1}', b'{"a":1,' + MEMBER + b"}"),
        (b"{}", b"{" + MEMBER + b"}"),
        (b" { \n} \n", b" { \n" + MEMBER + b"} \n"),
        (b'{"a":{} }\r\n\t', b'{"a":{} ,' + MEMBER + b"}\r\n\t"),
        (b'{"a":"}{"}', b'{"a":"}{",' + MEMBER + b"}"),
        ('{"é":"日本"}'.encode(), '{"é":"日本",'.encode() + MEMBER + b"}"),
        (b'{"a":1,"a":2}', b'{"a":1,"a":2,' + MEMBER + b"}"),
    ],
)
def test_a_member_is_added_before_the_last_brace(body: bytes, expected: bytes) -> None:
    assert inject_usage(body, streaming(has_options=False)) == expected


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"}", b"null", '{"a":1}'.encode("utf-16-le"), '{"a":1}'.encode("utf-16-be")])
def test_what_is_no_object_stays(body: bytes) -> None:
    assert inject_usage(body, streaming(has_options=False)) == body
    assert inject_usage(body, streaming(has_options=True)) == body


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{ "stream_options" : null , "a": 1 }', b'{ "stream_options" : {"include_usage":true} , "a": 1 }'),
        (b'{"a":1,"stream_options":{}}', b'{"a":1,"stream_options":{"include_usage":true}}'),
        (
            b'{"stream_options":{"include_usage":false,"x":[1, 2]},"a":"stream_options"}',
            b'{"stream_options":{"include_usage":true,"x":[1,2]},"a":"stream_options"}',
        ),
        (
            b'{"stream_options":{"x":1},"b":{"stream_options":{}},"stream_options":null}',
            b'{"stream_options":{"x":1},"b":{"stream_options":{}},"stream_options":{"include_usage":true}}',
        ),
        (b'{"stream\\u005foptions":null}', b'{"stream\\u005foptions":{"include_usage":true}}'),
        (b'{"stream_options":"x"}', b'{"stream_options":"x"}'),
        (
            b'{"a":"\\"stream_options\\":{}","stream_options":null}',
            b'{"a":"\\"stream_options\\":{}","stream_options":{"include_usage":true}}',
        ),
    ],
)  # fmt: skip
def test_given_options_are_written_anew(body: bytes, expected: bytes) -> None:
    assert inject_usage(body, streaming(has_options=True)) == expected


def test_nothing_is_done_where_nothing_is_to_do() -> None:
    body = b'{"messages":[]}'
    assert inject_usage(body, Call(kind=CallKind.CHAT, model="m")) is body
    assert inject_usage(body, Call(kind=CallKind.CHAT, model="m", stream=True, usage_wanted=True)) is body


KEYS = st.text(max_size=6).filter(lambda key: key != "n") | st.just("stream_options")  # a bad n makes a call unreadable
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
)


@given(
    fields=st.dictionaries(KEYS, VALUES, max_size=5),
    options=st.none() | st.dictionaries(st.text(max_size=3), VALUES, max_size=2),
    place=st.booleans(),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
)
def test_the_rest_means_the_same(
    fields: dict[str, Any], options: dict[str, Any] | None, place: bool, indent: int | None, ascii_only: bool
) -> None:
    fields = {key: value for key, value in fields.items() if key != "stream_options"} | {"messages": [], "stream": True}
    if place:
        fields["stream_options"] = options
    body = json.dumps(fields, indent=indent, ensure_ascii=ascii_only).encode()
    injected = inject_usage(body, read_call(CallKind.CHAT, body))
    read = json.loads(injected)
    assert read.pop("stream_options") == (fields.pop("stream_options", None) or {}) | {"include_usage": True}
    assert read == fields
    assert read_call(CallKind.CHAT, injected).usage_wanted


@pytest.mark.parametrize(
    ("body", "after"),
    [
        (b'{"model": "a", "x": 1.50}', b'{"model": "b", "x": 1.50}'),
        (b'{"model":"a","model":"c"}', b'{"model":"a","model":"b"}'),
        (b'{"n": {"model": "a"}}', b'{"n": {"model": "a"},"model":"b"}'),
        (b" {} ", b' {"model":"b"} '),
        (b"[1]", b"[1]"),
    ],
)
def test_one_member_is_set_and_nothing_else_is_touched(body: bytes, after: bytes) -> None:
    assert with_member(body, "model", "b") == after
