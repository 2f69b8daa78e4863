"""Ask a stream for its usage without touching anything else of the body.

Where the client sent no ``stream_options``, the member is inserted before the object's closing brace. Otherwise only the value of
the last ``stream_options`` is written anew (of duplicate keys the last one counts, in the engine as here). All other bytes stay as
they came. A body this cannot be done to (UTF-16, not an object) is returned unchanged: the stream then ends without usage.
"""

import re

import msgspec

from proxy.wire.call import Call

_MEMBER = b'"stream_options":{"include_usage":true}'
_SPACE = b" \t\n\r"
_OPEN, _CLOSE = b"{}"
_OBJECT = re.compile(rb"[ \t\n\r]*\{")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:,]', re.DOTALL)


def inject_usage(body: bytes, call: Call) -> bytes:
    """``body`` with ``include_usage`` set, if ``call`` streams and did not ask for it; else ``body``."""
    if not call.stream or call.usage_wanted:
        return body
    if call.has_stream_options:
        return _rewrite_options(body)
    return _with_another(body, _MEMBER)


def with_member(body: bytes, key: str, value: object) -> bytes:
    """``body`` with the last top-level member called ``key`` set to ``value``, or with such a member where it has none."""
    span = last_value_span(body, key)
    encoded = msgspec.json.encode(value)
    if span is None:
        return _with_another(body, msgspec.json.encode(key) + b":" + encoded)
    return body[: span[0]] + encoded + body[span[1] :]


def _with_another(body: bytes, member: bytes) -> bytes:
    end = _last_non_space(body, len(body))
    if end < 1 or body[end] != _CLOSE or _OBJECT.match(body) is None:
        return body
    # only the outer brace can be open right before the last closing one
    comma = b"" if body[_last_non_space(body, end)] == _OPEN else b","
    return b"".join((memoryview(body)[:end], comma, member, memoryview(body)[end:]))


def _last_non_space(body: bytes, end: int) -> int:
    """Index of the last byte before ``end`` that is not white space; -1 where there is none. Copies nothing."""
    index = end - 1
    while index >= 0 and body[index] in _SPACE:
        index -= 1
    return index


def _rewrite_options(body: bytes) -> bytes:
    span = last_value_span(body, "stream_options")
    if span is None:
        return body
    start, end = span
    try:
        options = msgspec.json.decode(body[start:end])
    except (msgspec.DecodeError, RecursionError):
        return body
    if options is None:
        options = {}
    if not isinstance(options, dict):
        return body  # the engine refuses it in its own words
    return body[:start] + msgspec.json.encode({**options, "include_usage": True}) + body[end:]


def last_value_span(body: bytes, key: str) -> tuple[int, int] | None:
    """Start and end of the value of the last top-level member called ``key``; None where there is none."""
    found: tuple[int, int] | None = None
    depth = 0
    is_key = False  # the next string at depth one is a member's name
    name: bytes | None = None
    value_start = -1
    for match in _TOKEN.finditer(body):
        token = match.group()
        first = token[:1]
        if first in b"{[":
            depth += 1
            is_key = depth == 1
        elif first in b"}]":
            depth -= 1
        elif depth == 1 and first == b":" and value_start < 0:
            value_start = match.end()
        elif depth == 1 and first == b'"' and is_key:
            name = token
            is_key = False
        if value_start >= 0 and ((depth == 1 and first == b",") or depth == 0):
            if name is not None and _is_name(name, key):
                found = _trim(body, value_start, match.start())
            value_start = -1
            is_key = True
    return found


def _is_name(token: bytes, key: str) -> bool:
    try:
        return bool(msgspec.json.decode(token) == key)
    except msgspec.DecodeError:
        return False


def _trim(body: bytes, start: int, end: int) -> tuple[int, int]:
    value = body[start:end]
    return start + len(value) - len(value.lstrip(_SPACE)), start + len(value.rstrip(_SPACE))
