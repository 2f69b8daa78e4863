"""Who sends slowly, without end or too much is let go with a status, and nobody else waits for it."""

import asyncio

import pytest

from tests.integration.hostile.exchanging import dribble, hostile, rest, statuses

GET = b"GET /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


async def test_slow_heads_and_bodies_are_let_go_and_nobody_waits_for_them() -> None:
    async with hostile(head_timeout="300ms", body_timeout="400ms") as kvgate:
        slow = [asyncio.ensure_future(dribble(kvgate.port, b"GET /slow HTTP/1.1\r\nhost: x\r\n", b"f: a\r\n")) for _ in range(50)]
        slow += [asyncio.ensure_future(dribble(kvgate.port, POST + b"content-length: 9999\r\n\r\n", b"x")) for _ in range(50)]
        slow += [
            asyncio.ensure_future(dribble(kvgate.port, POST + b"transfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n"))
            for _ in range(50)
        ]
        served = 0
        while not all(task.done() for task in slow):
            assert statuses(await kvgate.say(GET)) == [200]
            served += 1
        assert served
        assert [statuses(task.result()) for task in slow] == [[408]] * 150
        assert {line for line in kvgate.replica.lines if b"/x" not in line} == set()
        assert kvgate.proxy.metric('kvgate_connections_refused_total{fault="head_timeout"}') == 50
        assert kvgate.proxy.metric('kvgate_connections_refused_total{fault="body_timeout"}') == 100
        assert kvgate.proxy.metric('kvgate_limit{key="limits.head_timeout"}') == 0.3


@pytest.mark.parametrize(
    "endless",
    [b"a", b"f: a\r\n", b"\xff"],
    ids=["a line", "fields", "bytes that no line holds"],
)
async def test_a_head_without_end_is_refused(endless: bytes) -> None:
    async with hostile(head_max="4KiB") as kvgate:
        reader, writer = await kvgate.connect()
        writer.write(b"GET /x HTTP/1.1\r\nhost: x\r\nf: ")
        answer = asyncio.ensure_future(reader.read(65536))
        while not answer.done():
            writer.write(endless * 300)
            await asyncio.wait([answer], timeout=0.002)
        writer.transport.abort()
        assert statuses(answer.result()) == [431]
        assert kvgate.replica.requests == []


async def test_a_head_up_to_the_limit_is_served() -> None:
    async with hostile(head_max="4KiB") as kvgate:
        fields = b"".join(b"f%d: %b\r\n" % (n, b"a" * 90) for n in range(40))
        assert statuses(await kvgate.say(GET.replace(b"\r\n\r\n", b"\r\n" + fields + b"\r\n"))) == [200]
        assert statuses(await kvgate.say(GET.replace(b"\r\n\r\n", b"\r\n" + fields * 2 + b"\r\n"))) == [431]
        assert len(kvgate.replica.requests) == 1


@pytest.mark.parametrize("what", [b"1;" + b"e" * 30_000, b"0\r\nt: " + b"a" * 30_000, b"0\r\n" + b"t: a\r\n" * 5000])
async def test_extensions_and_trailers_without_end_are_refused(what: bytes) -> None:
    async with hostile(head_max="4KiB") as kvgate:
        raw = await kvgate.say(
            POST + b"transfer-encoding: chunked\r\n\r\n", *(what[at : at + 1000] for at in range(0, len(what), 1000))
        )
        assert statuses(raw) in ([400], [])  # [] where more was on its way than was read, so that the reset overtook the answer
        assert kvgate.proxy.metric('kvgate_connections_refused_total{fault="malformed"}') == 1
        assert kvgate.replica.requests == []


async def test_a_body_too_large_is_refused_before_it_is_sent() -> None:
    """By what is announced: a client that waits to be asked is never asked."""
    async with hostile(body_max="1KiB") as kvgate:
        reader, writer = await kvgate.connect()
        writer.write(POST + b"content-length: 1025\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n")
        raw = await rest(reader, writer)
        assert statuses(raw) == [400]
        assert b"limits.body_max" in raw
        assert kvgate.replica.requests == []


@pytest.mark.parametrize(("size", "served"), [(1023, True), (1024, True), (1025, False)])
async def test_a_chunked_body_too_large_is_refused(size: int, served: bool) -> None:
    async with hostile(body_max="1KiB") as kvgate:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (size, b"x" * size)
        raw = await kvgate.say(b"POST /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n", body)
        assert statuses(raw) == [200 if served else 400]
        assert len(kvgate.replica.requests) == served
