"""What can be read in two ways is refused and reaches no replica (RFC 9110, RFC 9112), on a raw socket before a replica that records."""

import pytest

from tests.integration.hostile.exchanging import Hostile, statuses
from tests.integration.serving.harness import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


POST = b"POST /x HTTP/1.1\r\nhost: x\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"

REFUSED = {
    "length and coding": POST + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "coding and length": POST + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "two lengths": POST + b"content-length: 4\r\ncontent-length: 5\r\n\r\nabcd" + SMUGGLED,
    "the same length twice": POST + b"content-length: 4\r\ncontent-length: 4\r\n\r\nabcd" + SMUGGLED,
    "a list of lengths": POST + b"content-length: 4, 4\r\n\r\nabcd",
    "a length with a sign": POST + b"content-length: +4\r\n\r\nabcd",
    "a negative length": POST + b"content-length: -4\r\n\r\nabcd",
    "a length in hex": POST + b"content-length: 0x4\r\n\r\nabcd",
    "a length beyond 64 bits": POST + b"content-length: 18446744073709551620\r\n\r\nabcd",
    "an empty length": POST + b"content-length: \r\n\r\n",
    "a length in a trailer": CHUNKED + b"1\r\na\r\n0\r\ncontent-length: 9\r\n\r\n",
    "chunked twice": POST + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunked, then not": POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "two fields of coding": POST + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"content-length : 4\r\n\r\nabcd",
    "a size that is no number": CHUNKED + b"zz\r\na\r\n0\r\n\r\n",
    "a size with 0x": CHUNKED + b"0x1\r\na\r\n0\r\n\r\n",
    "a negative size": CHUNKED + b"-1\r\na\r\n0\r\n\r\n",
    "a size beyond 64 bits": CHUNKED + b"10000000000000001\r\na\r\n0\r\n\r\n" + SMUGGLED,
    "a size ended by a bare LF": CHUNKED + b"1\na\r\n0\r\n\r\n",
    "an extension with a bare LF": CHUNKED + b"1;a\nb\r\na\r\n0\r\n\r\n",
    "a size with a space": CHUNKED + b"1 \r\na\r\n0\r\n\r\n",
    "a chunk longer than its size": CHUNKED + b"1\r\nab\r\n0\r\n\r\n",
    "a folded field": b"GET /x HTTP/1.1\r\nhost: x\r\nf: a\r\n b\r\n\r\n",
    "a folded first field": b"GET /x HTTP/1.1\r\n host: x\r\n\r\n",
    "bare LF throughout": b"GET /x HTTP/1.1\nhost: x\n\n",
    "a bare LF after a field": b"GET /x HTTP/1.1\r\nhost: x\nf: a\r\n\r\n",
    "a bare CR in a field": b"GET /x HTTP/1.1\r\nhost: x\rf: a\r\n\r\n",
    "a bare LF at the end": b"GET /x HTTP/1.1\r\nhost: x\r\n\n",
    "NUL in a value": b"GET /x HTTP/1.1\r\nhost: x\r\nf: a\0b\r\n\r\n",
    "NUL in a name": b"GET /x HTTP/1.1\r\nhost: x\r\nf\0: a\r\n\r\n",
    "NUL in the target": b"GET /x\0 HTTP/1.1\r\nhost: x\r\n\r\n",
    "a control character in a value": b"GET /x HTTP/1.1\r\nhost: x\r\nf: a\x01b\r\n\r\n",
    "a line that is no field": b"GET /x HTTP/1.1\r\nhost: x\r\nfield\r\n\r\n",
    "a field without a name": b"GET /x HTTP/1.1\r\nhost: x\r\n: a\r\n\r\n",
    "a name that is no token": b"GET /x HTTP/1.1\r\nhost: x\r\n\xe4: a\r\n\r\n",
    "a space in the target": b"GET /x y HTTP/1.1\r\nhost: x\r\n\r\n",
    "no Host": b"GET /x HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET /x HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
    "two Hosts in HTTP/1.0": b"GET /x HTTP/1.0\r\nhost: x\r\nhost: y\r\n\r\n",
    "authority form": b"GET x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
    "CONNECT": b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n" + SMUGGLED,
    "asterisk form": b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
    "another scheme": b"GET ftp://x/x HTTP/1.1\r\nhost: x\r\n\r\n",
    "absolute form without a path": b"GET http://x HTTP/1.1\r\nhost: x\r\n\r\n",
    "a relative target": b"GET x HTTP/1.1\r\nhost: x\r\n\r\n",
    "HTTP/0.9": b"GET /x\r\n\r\n",
    "HTTP/1.2": b"GET /x HTTP/1.2\r\nhost: x\r\n\r\n",
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an unknown method": b"FOO /x HTTP/1.1\r\nhost: x\r\n\r\n",
    "a method in lower case": b"get /x HTTP/1.1\r\nhost: x\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_is_ambiguous_is_refused(kvgate: Hostile, what: str) -> None:
    raw = await kvgate.say(REFUSED[what])
    assert statuses(raw) == [400], raw
    assert b"connection: close\r\n" in raw
    assert b'"code":"malformed"' in raw
    await untouched(kvgate)


@pytest.mark.parametrize("what", REFUSED)
async def test_also_when_it_comes_byte_by_byte(kvgate: Hostile, what: str) -> None:
    raw = REFUSED[what]
    assert statuses(await kvgate.say(*(raw[at : at + 1] for at in range(len(raw))))) == [400]
    await untouched(kvgate)


async def untouched(kvgate: Hostile) -> None:
    """Nothing came to the replica, and others are served."""
    assert kvgate.replica.requests == []
    assert statuses(await kvgate.say(b"GET /after HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")) == [200]
    assert kvgate.replica.lines == [b"GET /after HTTP/1.1"]
    assert kvgate.replica.strays == []


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"GZIP,\tchunked", b"xchunked"])
async def test_a_coding_that_is_not_undone_here_is_refused(kvgate: Hostile, coding: bytes) -> None:
    raw = await kvgate.say(POST + b"transfer-encoding: " + coding + b"\r\n\r\n0\r\n\r\n")
    assert statuses(raw) == [501]
    await untouched(kvgate)


async def test_a_refusal_waits_for_the_answer_before_it(kvgate: Hostile) -> None:
    """Written at once, it would stand where the answer to the first request has to."""
    kvgate.replica.let_go.clear()
    reader, writer = await kvgate.connect()
    writer.write(b"GET /first HTTP/1.1\r\nhost: x\r\n\r\nGET /second HTTP/1.1\r\nhost: x\r\n\r\nnonsense\r\n\r\n")
    await until(lambda: kvgate.replica.requests, "the first request at the replica")
    writer.write(b"GET /third HTTP/1.1\r\nhost: x\r\n\r\n")
    kvgate.replica.let_go.set()
    raw = await reader.read()
    writer.close()
    assert statuses(raw) == [200, 200]
    assert raw.count(b"connection: close") == 1
    assert kvgate.replica.lines == [b"GET /first HTTP/1.1", b"GET /second HTTP/1.1"]


async def test_a_broken_body_behind_an_unfinished_answer_is_dropped(kvgate: Hostile) -> None:
    kvgate.replica.let_go.clear()
    reader, writer = await kvgate.connect()
    writer.write(b"GET /first HTTP/1.1\r\nhost: x\r\n\r\n" + CHUNKED + b"zz\r\n")
    await until(lambda: kvgate.replica.requests, "the first request at the replica")
    kvgate.replica.let_go.set()
    raw = await reader.read()
    writer.close()
    assert statuses(raw) == [200]
    assert kvgate.replica.lines == [b"GET /first HTTP/1.1"]


async def test_faults_are_counted(kvgate: Hostile) -> None:
    series = 'kvgate_connections_refused_total{fault="malformed"}'
    before = kvgate.proxy.metric(series)
    await kvgate.say(REFUSED["two lengths"])
    assert kvgate.proxy.metric(series) == before + 1
