"""What is odd but lawful is served, and the replica gets one plain request of it, byte for byte as it is shown here."""

import asyncio

import pytest

from tests.integration.hostile.exchanging import Hostile, rest, statuses

pytestmark = pytest.mark.asyncio(loop_scope="module")


def head(*lines: bytes) -> bytes:
    """A head of these lines, the connection to be closed after its answer."""
    return b"\r\n".join([*lines, b"connection: close", b"", b""])


GET, POST, HOST = b"GET /x HTTP/1.1", b"POST /x HTTP/1.1", b"host: x"
PLAIN = [b"POST /x HTTP/1.1"]
OFFER = b"POST /x HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings, close\r\nupgrade: h2c\r\nhttp2-settings: AA\r\n"
LAWFUL: dict[str, tuple[bytes, list[bytes], bytes]] = {
    # what is sent; first line and fields that the replica gets beside Host; body that it gets
    "a chunked body": (head(POST, HOST, b"transfer-encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n", [*PLAIN, b"content-length: 3"], b"abc"),
    "chunk extensions": (
        head(POST, HOST, b"transfer-encoding: chunked") + b"3;a=b\r\nabc\r\n0;c\r\n\r\n", [*PLAIN, b"content-length: 3"], b"abc"),
    "sizes with leading zeros": (
        head(POST, HOST, b"Transfer-Encoding:\tChunked") + b"003\r\nabc\r\n000\r\n\r\n", [*PLAIN, b"content-length: 3"], b"abc"),
    "trailers, which are dropped": (
        head(POST, HOST, b"transfer-encoding: chunked", b"trailer: authorization")
        + b"3\r\nabc\r\n0\r\nauthorization: Bearer stolen\r\nx-kvgate-tenant: other\r\n\r\n",
        [*PLAIN, b"content-length: 3"], b"abc"),
    "a body on GET": (head(GET, HOST, b"content-length: 3") + b"abc", [GET, b"content-length: 3"], b"abc"),
    "no body and no length on POST": (head(POST, HOST), [*PLAIN, b"content-length: 0"], b""),
    "absolute form": (head(b"GET http://other:99/x?y=1 HTTP/1.1", HOST), [b"GET /x?y=1 HTTP/1.1"], b""),
    "a fragment": (head(b"GET /x?y#z HTTP/1.1", HOST), [b"GET /x?y HTTP/1.1"], b""),
    "two slashes": (head(b"GET //other/x HTTP/1.1", HOST), [b"GET //other/x HTTP/1.1"], b""),
    "an escaped path": (head(b"GET /%2e%2e/x%0d%0ay HTTP/1.1", HOST), [b"GET /%2e%2e/x%0d%0ay HTTP/1.1"], b""),
    "an empty line first": (b"\r\n" + head(GET, HOST), [GET], b""),
    "HTTP/1.0 without Host": (b"GET /x HTTP/1.0\r\n\r\n", [GET], b""),
    "Connection names framing": (
        b"POST /x HTTP/1.1\r\nhost: x\r\nconnection: close, content-length\r\ncontent-length: 3\r\n\r\nabc",
        [*PLAIN, b"content-length: 3"], b"abc"),
    "Connection names another field": (
        b"GET /x HTTP/1.1\r\nhost: x\r\nx-one: 1\r\nx-two: 2\r\nconnection: close, X-One\r\n\r\n", [GET, b"x-two: 2"], b""),
    "fields of one hop": (
        head(GET, HOST, b"TE: trailers", b"trailer: x", b"keep-alive: timeout=9", b"proxy-authorization: a", b"proxy-connection: close"),
        [GET], b""),
    "an offer of HTTP/2 without a body": (
        OFFER.replace(b"POST", b"GET") + b"\r\n", [GET], b""),
    "an offer of HTTP/2 with a body": (
        OFFER + b"content-length: 3\r\n\r\nabc", [*PLAIN, b"content-length: 3"], b"abc"),
    "an offer of HTTP/2 with a chunked body": (
        OFFER + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nauthorization: no\r\n\r\n", [*PLAIN, b"content-length: 3"], b"abc"),
}  # fmt: skip


def upstream_port(kvgate: Hostile) -> int:
    (watcher,) = kvgate.proxy.services.watchers.values()
    return int(watcher.policy.url.rpartition(":")[2])


OURS = (b"x-request-id: ", b"via: ", b"x-forwarded-", b"forwarded: ", b"traceparent: ")


def fields_of(raw: bytes) -> list[bytes]:
    """First line and fields, in order, without Host and what kvgate may add of its own accord."""
    return [line for line in raw.removesuffix(b"\r\n\r\n").split(b"\r\n") if not line.startswith((b"host: ", *OURS))]


@pytest.mark.parametrize("whole", [True, False], ids=["at once", "byte by byte"])
@pytest.mark.parametrize("what", LAWFUL)
async def test_what_is_lawful_arrives_plain(kvgate: Hostile, what: str, whole: bool) -> None:
    sent, lines, body = LAWFUL[what]
    pieces = [sent] if whole else [sent[at : at + 1] for at in range(len(sent))]
    assert statuses(await kvgate.say(*pieces)) == [200]
    ((got_head, got_body),) = kvgate.replica.requests
    assert fields_of(got_head) == lines
    assert [line for line in got_head.split(b"\r\n") if line.startswith(b"host: ")] == [
        b"host: 127.0.0.1:%d" % upstream_port(kvgate)
    ]
    assert got_body == body
    assert kvgate.replica.strays == []


async def test_a_request_after_an_offer_of_http2_is_served(kvgate: Hostile) -> None:
    """Java's client offers it with the first request of a connection."""
    offer = b"POST /first HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: h2c\r\ncontent-length: 3\r\n\r\nabc"
    again = offer.replace(b"first", b"second").replace(b"content-length: 3\r\n\r\nabc", b"content-length: 0\r\n\r\n")
    raw = await kvgate.say(offer + again + head(b"GET /third HTTP/1.1", HOST))
    assert statuses(raw) == [200, 200, 200]
    assert kvgate.replica.lines == [b"POST /first HTTP/1.1", b"POST /second HTTP/1.1", b"GET /third HTTP/1.1"]
    assert [body for _, body in kvgate.replica.requests] == [b"abc", b"", b""]


async def test_pipelined_requests_are_answered_in_order(kvgate: Hostile) -> None:
    raw = await kvgate.say(
        b"".join(b"POST /%d HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n%d" % (n, n) for n in range(9)) + head(GET, HOST)
    )
    assert statuses(raw) == [200] * 10
    assert kvgate.replica.lines == [*(b"POST /%d HTTP/1.1" % n for n in range(9)), GET]
    assert [body for _, body in kvgate.replica.requests] == [*(b"%d" % n for n in range(9)), b""]


async def test_nothing_is_served_after_connection_close(kvgate: Hostile) -> None:
    assert statuses(await kvgate.say(head(GET, HOST) + b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n")) == [200]
    assert kvgate.replica.lines == [GET]


async def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(kvgate: Hostile) -> None:
    reader, writer = await kvgate.connect()
    writer.write(head(POST, HOST, b"expect: 100-continue", b"content-length: 3"))
    async with asyncio.timeout(10):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"abc")
    assert statuses(await rest(reader, writer)) == [200]
    ((got, body),) = kvgate.replica.requests
    assert b"expect" not in got
    assert body == b"abc"


async def test_a_call_loses_no_framing_by_a_connection_field(kvgate: Hostile) -> None:
    """The admitted routes write the head by the same rules."""
    body = b'{"model": "mock", "messages": [{"role": "user", "content": "hi"}]}'
    lines = (b"POST /v1/chat/completions HTTP/1.1", HOST, b"content-type: application/json", b"content-length: %d" % len(body))
    raw = await kvgate.say(b"\r\n".join([*lines, b"connection: close, content-length, host", b"", b""]) + body)
    assert statuses(raw) == [200]
    ((got, got_body),) = kvgate.replica.requests
    assert b"content-length: %d\r\n" % len(body) in got
    assert got_body == body
