"""Which fields pass a proxy, and that nothing can be smuggled into a request head."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire import http_fields
from proxy.wire.http_fields import (
    FieldError,
    Origin,
    encode_request_head,
    end_to_end,
    parse_base_url,
    request_fields,
    response_fields,
)

ORIGIN = Origin("http", "r", 8000, b"r:8000", b"/prefix")
ONE_HOP = [
    (b"Connection", b"close, X-Hop"),
    (b"x-hop", b"1"),
    (b"Keep-Alive", b"timeout=5"),
    (b"Proxy-Connection", b"x"),
    (b"proxy-authorization", b"secret"),
    (b"TE", b"trailers"),
    (b"Trailer", b"x"),
    (b"Transfer-Encoding", b"chunked"),
    (b"Upgrade", b"h2c"),
]


def test_fields_of_one_hop_pass_in_neither_direction() -> None:
    kept = [(b"x-a", b"1"), (b"set-cookie", b"a"), (b"set-cookie", b"b")]
    assert response_fields([*ONE_HOP, *kept]) == kept
    assert request_fields([kept[0], *ONE_HOP, *kept[1:]]) == kept


def test_a_response_keeps_its_length_and_a_request_does_not() -> None:
    fields = [(b"Content-Length", b"3"), (b"Host", b"evil"), (b"Expect", b"100-continue")]
    assert response_fields(fields)[0] == (b"content-length", b"3")
    assert request_fields(fields) == []


def test_a_head_is_written_with_our_host_and_length() -> None:
    fields = [(b"host", b"client"), (b"content-length", b"99"), (b"Authorization", b"Bearer k")]
    head = encode_request_head(ORIGIN, b"POST", b"/v1/x?y=1", fields, 5)
    assert head == b"POST /prefix/v1/x?y=1 HTTP/1.1\r\nhost: r:8000\r\nauthorization: Bearer k\r\ncontent-length: 5\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "size", "has_length"), [(b"POST", 0, True), (b"GET", 0, False), (b"GET", 1, True), (b"PUT", 0, True)]
)
def test_the_length_is_left_out_only_where_no_body_is_expected(method: bytes, size: int, has_length: bool) -> None:
    assert (b"content-length: %d" % size in encode_request_head(ORIGIN, method, b"/", [], size)) is has_length


@given(
    st.binary(max_size=8),
    st.sampled_from([b"\r", b"\n", b"\0", b"\r\n"]),
    st.binary(max_size=8),
    st.sampled_from(["name", "value", "target", "method"]),
)
def test_no_break_gets_into_a_head(before: bytes, bad: bytes, after: bytes, where: str) -> None:
    text = before + bad + after
    name = b"x" + text if where == "name" else b"x"
    value = text if where == "value" else b"v"
    target = b"/" + text if where == "target" else b"/"
    method = b"P" + text if where == "method" else b"POST"
    with pytest.raises(FieldError):
        encode_request_head(ORIGIN, method, target, [(name, value)], 0)


@pytest.mark.parametrize("name", [b"", b"a b", b"a:b", b"transfer-encoding ", b"\xe4"])
def test_a_name_that_is_no_token_is_refused(name: bytes) -> None:
    with pytest.raises(FieldError, match="name"):
        encode_request_head(ORIGIN, b"POST", b"/", [(name, b"v")], 0)


@pytest.mark.parametrize("target", [b"", b"x", b"/a b", b"http://evil/"])
def test_a_target_that_is_no_path_is_refused(target: bytes) -> None:
    with pytest.raises(FieldError, match="target"):
        encode_request_head(ORIGIN, b"POST", target, [], 0)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://a", Origin("http", "a", 80, b"a", b"")),
        ("https://a:443/", Origin("https", "a", 443, b"a", b"")),
        ("https://a:8443/p/q/", Origin("https", "a", 8443, b"a:8443", b"/p/q")),
        ("http://[::1]:8000", Origin("http", "::1", 8000, b"[::1]:8000", b"")),
    ],
)
def test_base_urls(url: str, origin: Origin) -> None:
    assert parse_base_url(url) == origin


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("a:8000", "http://"),
        ("ftp://a", "http://"),
        ("http://", "host"),
        ("http://a:99999", "port"),
        ("http://a?x=1", "query"),
        ("http://u:p@a", "credentials"),
        ("http://ä", "punycode"),
        ("http://a/b c", "percent-encode"),
    ],
)
def test_a_bad_base_url_says_what_to_do(url: str, hint: str) -> None:
    with pytest.raises(FieldError, match=hint):
        parse_base_url(url)


def test_long_names_are_not_remembered() -> None:
    """Clients choose names: a thousand of 60 KB each would stay in memory."""
    request_fields([(b"x-short", b"1")])
    kept = http_fields._request_remembered.cache_info().currsize
    assert request_fields([(b"x" * 65, b"1")]) == [(b"x" * 65, b"1")]
    response_fields([(b"y" * 65, b"1")])
    assert http_fields._request_remembered.cache_info().currsize == kept


@pytest.mark.parametrize(
    ("connection", "left"),
    [
        (b"close", [b"connection", b"host", b"content-length", b"authorization", b"x-a"]),
        (b"X-A , close", [b"host", b"content-length", b"authorization", b"connection"]),
        (b"authorization,x-a,keep-alive, upgrade", [b"host", b"content-length", b"connection"]),
        (b"host, content-length, transfer-encoding, te", [b"connection", b"host", b"content-length", b"authorization", b"x-a"]),
        (b",,x-a,", [b"host", b"content-length", b"authorization", b"connection"]),
    ],
)
def test_what_connection_names_is_gone_at_the_door(connection: bytes, left: list[bytes]) -> None:
    """But for what frames the message; and the list itself no longer names what is added later."""
    fields = [(b"connection", connection)] + [(name, b"1") for name in (b"host", b"content-length", b"authorization", b"x-a")]
    kept = end_to_end(fields)
    assert [name for name, _ in kept] == left
    assert request_fields([*kept, (b"authorization", b"ours"), (b"x-a", b"ours")])[-2:] == [
        (b"authorization", b"ours"),
        (b"x-a", b"ours"),
    ]
