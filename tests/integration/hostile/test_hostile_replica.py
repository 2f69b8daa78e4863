"""A replica that answers with anything at all: its one client gets a clean end or what is lawful, and nobody else notices.

Memory stays within bounds, no connection is used again that may carry more than its answer, and the next request is served.
"""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.integration.serving.harness import Exchange, Reply, RunningProxy, answer_like_vllm, proxying
from tests.integration.serving.test_reroutes import SERVED
from tests.support.upstream_servers import Peer, ScriptedUpstream

Act = Callable[[Peer], Awaitable[None]]
MEMORY_BYTES_MAX = 8 << 20  # a few heads, a few reads, and what the test itself holds
RELAY = {"first_byte": "1s", "idle": "1s", "reroutes_max": 0}
EVIL = "evil"
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
PIECE = 64 * 1024
READ_BYTES_MAX = 1 << 20
FEW_MB = 48 << 20  # of what is lawful and passes through


@dataclass(slots=True)
class Evil:
    """Serves what everybody else asks; who says ``EVIL`` gets ``act``."""

    act: Act
    connections: dict[int, list[bool]] = field(default_factory=dict)  # by connection, whether each of its calls was evil

    async def __call__(self, peer: Peer) -> None:
        while True:
            head, body = await peer.request()
            if b"POST /v1/" not in head:
                await answer_like_vllm(peer, head)
                return
            calls = self.connections.setdefault(id(peer), [])
            calls.append(EVIL.encode() in body)
            if calls[-1]:
                await self.act(peer)
            else:
                await peer.send(SERVED)


def says(*answers: bytes) -> Act:
    """These bytes, and then nothing."""

    async def act(peer: Peer) -> None:
        for answer in answers:
            await peer.send(answer)
        await peer.until_gone()

    return act


def answers(*answers: bytes) -> Act:
    """These bytes, and then the next call."""

    async def act(peer: Peer) -> None:
        for answer in answers:
            await peer.send(answer)

    return act


def floods(first: bytes, piece: bytes) -> Act:
    """A beginning, and then the same for ever."""

    async def act(peer: Peer) -> None:
        await peer.send(first)
        while True:
            await peer.send(piece)

    return act


def times(count: int, first: bytes, piece: bytes, last: bytes) -> Act:
    async def act(peer: Peer) -> None:
        await peer.send(first)
        for _ in range(count):
            await peer.send(piece)
        await peer.send(last)

    return act


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: </x>; rel=preload\r\n\r\n"
ONE = b"%x\r\n" % PIECE + b"x" * PIECE + b"\r\n"
WHOLE = OK + b"content-length: 2\r\n"
NO_ANSWER: dict[str, Act] = {
    "interim answers without end": floods(b"", CONTINUE * 1000),
    "hints without end": floods(b"", HINTS * 1000),
    "an interim answer that never ends": floods(b"HTTP/1.1 100 Continue\r\n", b"a: b\r\n" * 1000),
    "a head without end": floods(OK, b"a: b\r\n" * 1000),
    "a field without end": floods(OK + b"a: ", b"b" * PIECE),
    "a name without end": floods(OK, b"a" * PIECE),
    "a reason without end": floods(b"HTTP/1.1 200 ", b"O" * PIECE),
    "line ends without end": floods(b"", b"\r\n" * 1000),
    "a head above its bound at once": says(OK + b"".join(b"a%d: %b\r\n" % (n, b"b" * 90) for n in range(1000)) + b"\r\n{}"),
    "an upgrade that nobody asked for": says(
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nxxxx"
    ),
    "both framings": says(OK + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
    "both framings, the other way round": says(
        OK + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    ),
    "two lengths": says(OK + b"content-length: 2\r\ncontent-length: 5\r\n\r\n{}xxx"),
    "a length that is none": says(OK + b"content-length: -5\r\n\r\n{}"),
    "a length beyond all": says(OK + b"content-length: 99999999999999999999\r\n\r\n{}"),
    "a coding that is none": says(OK + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "a NUL in a value": says(WHOLE + b"x: a\x00b\r\n\r\n{}"),
    "a CR in a value": says(WHOLE + b"x: a\rset-cookie: b\r\n\r\n{}"),
    "a bare LF in the head": says(WHOLE.replace(b"\r\n", b"\n") + b"\n{}"),
    "a folded field": says(WHOLE + b"x: a\r\n b: c\r\n\r\n{}"),
    "a space before the colon": says(WHOLE + b"content-length : 5\r\n\r\n{}"),
    "a status of four digits": says(b"HTTP/1.1 2000 OK\r\ncontent-length: 2\r\n\r\n{}"),
    "a status below all": says(b"HTTP/1.1 099 OK\r\ncontent-length: 2\r\n\r\n{}"),
    "HTTP/2": says(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "nothing": says(),
    "noise": says(bytes(range(256)) * 100),
}
CUT: dict[str, Act] = {  # the head went out before it came
    "a chunk extension without end": floods(CHUNKED + b"1;", b"a" * PIECE),
    "chunk extensions without end": floods(CHUNKED + b"1\r\n{\r\n1;a=", b"b;" * PIECE),
    "a size of zeros without end": floods(CHUNKED, b"0" * PIECE),
    "a size beyond all": says(CHUNKED + b"FFFFFFFFFFFFFFFFF\r\n{}"),
    "a size that nobody fills": says(CHUNKED + b"7FFFFFFFFFFFFFFF\r\n{}"),
    "a size below nothing": says(CHUNKED + b"-2\r\n{}\r\n"),
    "a size that is none": says(CHUNKED + b"0x2\r\n{}\r\n"),
    "trailers without end": floods(CHUNKED + b"2\r\n{}\r\n0\r\n", b"a: b\r\n" * 1000),
    "a trailer without end": floods(CHUNKED + b"2\r\n{}\r\n0\r\na: ", b"b" * PIECE),
    "a trailer's name without end": floods(CHUNKED + b"2\r\n{}\r\n0\r\n", b"b" * PIECE),
    "a body that stops": says(OK + b"content-length: 50\r\n\r\n{"),
    "a body without a byte": says(OK + b"content-length: 50\r\n\r\n"),
    "a length that nobody fills": says(OK + b"content-length: 9223372036854775807\r\n\r\n{}"),
    "a stream that stops": says(SSE + b"a\r\ndata: {}\n\n\r\n"),
}
PASSED: dict[str, tuple[Act, int]] = {  # lawful; the bytes that the client gets
    "a hundred hints": (answers(HINTS * 100 + WHOLE + b"\r\n{}"), 2),
    "a chunk for every byte": (answers(CHUNKED + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"), 20_000),
    "many trailers": (answers(CHUNKED + b"2\r\n{}\r\n0\r\n" + b"a: b\r\n" * 1000 + b"\r\n"), 2),
    "a head near its bound": (answers(OK + b"x: " + b"b" * 60_000 + b"\r\ncontent-length: 2\r\n\r\n{}"), 2),
    "an event without a line end": (times(FEW_MB // PIECE, SSE, ONE, b"0\r\n\r\n"), FEW_MB),
    "an event of line ends": (answers(SSE + b"8000\r\n" + b"\n" * 0x8000 + b"\r\n0\r\n\r\n"), 0x8000),
    "an event of returns": (times(FEW_MB // PIECE, SSE, b"%x\r\n" % PIECE + b"\r" * PIECE + b"\r\n", b"0\r\n\r\n"), FEW_MB),
    "a JSON answer without end": (times(FEW_MB // PIECE, CHUNKED, ONE, b"0\r\n\r\n"), FEW_MB),
    "more than it announced": (answers(WHOLE + b"\r\n{}HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nstolen"), 2),
    "an upgrade offered beside an answer": (answers(WHOLE + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n{}"), 2),
}


@asynccontextmanager
async def before(act: Act, *, lawful: bool = False) -> AsyncIterator[tuple[RunningProxy, Evil]]:
    evil = Evil(act)
    async with ScriptedUpstream.running(evil) as server:
        async with proxying(server.url, kv_blocks=300, policy={"relay": RELAY}) as proxy:
            for _ in range(3):
                assert (await proxy.wire.chat(max_tokens=2)).status == 200
            yield proxy, evil
            for _ in range(3):
                assert (await proxy.wire.chat(max_tokens=2)).status == 200
            assert lawful or all(not any(calls[:-1]) for calls in evil.connections.values()), "a connection was used after that"
            faults = [line for line in proxy.metrics.splitlines() if line.startswith("kvgate_internal_errors_total{")]
            assert [line for line in faults if not line.endswith(" 0.0")] == []
            await proxy.until_idle()
        assert "open=0 idle=0" in repr(proxy.services.upstream) or "no origins" in repr(proxy.services.upstream)


async def asked(proxy: RunningProxy, *, stream: bool = False) -> Reply:
    """Ask as its client does, and see what it takes of memory; of a long body only the last bytes are kept, and a length told of it."""
    tracemalloc.start()
    try:
        begun = tracemalloc.get_traced_memory()[0]
        exchange = await proxy.wire.start_chat(max_tokens=2, user=EVIL, stream=stream)
        raw, size = b"", 0
        async with asyncio.timeout(20):
            while data := await exchange.reader.read(PIECE):
                size += len(data)
                raw = raw + data if size < READ_BYTES_MAX else raw + data[-5:]
        peak = tracemalloc.get_traced_memory()[1] - begun
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BYTES_MAX, peak
    rest = asyncio.StreamReader()
    rest.feed_data(raw)
    rest.feed_eof()
    if size >= READ_BYTES_MAX:
        await exchange.leave()
        return Reply(int(raw.split()[1]), {}, b"", size >= FEW_MB and raw.endswith(b"0\r\n\r\n"))
    return await Exchange(rest, exchange.writer).reply()


@pytest.mark.parametrize("what", NO_ANSWER)
async def test_what_is_no_answer_ends_in_an_error(what: str) -> None:
    async with before(NO_ANSWER[what]) as (proxy, _):
        reply = await asked(proxy)
        assert reply.status in {502, 504}, reply
        assert reply.json()["error"]["code"] == "upstream_failed"


@pytest.mark.parametrize("what", CUT)
async def test_what_breaks_off_is_not_taken_for_whole(what: str) -> None:
    async with before(CUT[what]) as (proxy, _):
        reply = await asked(proxy)
        length = reply.headers.get("content-length")
        cut = not reply.whole or (length is not None and len(reply.body) < int(length)) or b'"error"' in reply.body
        assert (reply.status in {502, 504}) or (reply.status == 200 and cut), reply


@pytest.mark.parametrize("what", PASSED)
async def test_what_is_odd_and_lawful_passes(what: str) -> None:
    act, size = PASSED[what]
    async with before(act, lawful=what != "more than it announced") as (proxy, _):
        reply = await asked(proxy, stream="event" in what)
        assert (reply.status, reply.whole) == (200, True)
        assert len(reply.body) == size or size == FEW_MB


async def test_an_answer_while_the_request_is_still_being_sent() -> None:
    async def act(peer: Peer) -> None:
        await peer.send(WHOLE + b"\r\n{}")
        await peer.until_gone()

    class Early(Evil):
        async def __call__(self, peer: Peer) -> None:
            head = await peer.reader.readuntil(b"\r\n\r\n")
            if b"POST /v1/" not in head:
                await answer_like_vllm(peer, head)
                return
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            if length > 1_000_000:
                self.connections.setdefault(id(peer), []).append(True)
                await act(peer)
            else:
                await peer.reader.readexactly(length)
                await peer.send(SERVED.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))

    async with (
        ScriptedUpstream.running(Early(act)) as server,
        proxying(server.url, kv_blocks=3000, policy={"relay": RELAY}) as proxy,
    ):
        reply = await proxy.wire.chat(max_tokens=2, user=EVIL, padding="x" * 20_000_000)
        assert (reply.status, reply.body) == (200, b"{}")
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        await proxy.until_idle()
