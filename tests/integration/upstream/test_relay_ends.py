"""The relay when the answer is cut off, the client leaves, or the server stops: every way a request can end but well."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from proxy.adapters.upstream import HttpUpstream, UpstreamLimits
from proxy.ports import Message, Receive, Send
from proxy.serving.relay import relay
from proxy.serving.relay_result import RelayEnd, RelayRequest, RelayResult
from proxy.wire.answer_forms import OPENAI
from proxy.wire.answer_usage import Usage
from tests.integration.upstream.relaying import (
    DONE,
    JSON_HEAD,
    SSE_HEAD,
    USAGE,
    Ticks,
    chunked,
    is_idle,
    once,
    relaying,
    then_close,
    token,
    until,
)
from tests.support.upstream_servers import Peer, ScriptedUpstream, dechunk, post, read_response

pytestmark = pytest.mark.usefixtures("either_way")

CUT_OFF = OPENAI.cut_off(b"")


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (token("a"), token("a") + CUT_OFF),
        (token("a") + b'data: {"id', token("a") + b'data: {"id\n\n' + CUT_OFF),
        (b"", CUT_OFF),
    ],
)
@pytest.mark.parametrize("strip", [True, False])
async def test_a_stream_cut_off_ends_with_an_error_event(sent: bytes, expected: bytes, strip: bool) -> None:
    async with relaying(then_close(SSE_HEAD + (chunked(sent, end=False) if sent else b"")), strip_usage=strip) as setup:
        _, wire, result = await setup.exchange()
        assert dechunk(wire) == (expected, True)
        assert (result.ended, result.started) == (RelayEnd.FAILED_MIDSTREAM, True)
        assert result.error is not None
        assert result.error.kind == "reset"


@pytest.mark.parametrize(
    ("answer", "is_whole"),
    [
        (JSON_HEAD % 10 + b"12345", lambda wire: len(wire) >= 10),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(b"12345", end=False), lambda wire: dechunk(wire)[1]),
    ],
)
async def test_any_other_body_cut_off_is_not_mistaken_for_whole(answer: bytes, is_whole: Callable[[bytes], bool]) -> None:
    async with relaying(then_close(answer)) as setup:
        head, wire, result = await setup.exchange()
        assert head.startswith(b"HTTP/1.1 200")
        assert not is_whole(wire)
        assert (result.ended, result.usage) == (RelayEnd.FAILED_MIDSTREAM, None)


async def test_an_engine_error_event_is_passed_and_noticed() -> None:
    error = b'data: {"error":{"message":"dead","type":"InternalServerError","param":null,"code":500}}\n\n'
    async with relaying(once(SSE_HEAD, chunked(token("a"), error, DONE))) as setup:
        _, wire, result = await setup.exchange()
        assert dechunk(wire) == (token("a") + error + DONE, True)
        assert (result.ended, result.stream_failed) == (RelayEnd.COMPLETED, True)


@pytest.mark.parametrize(
    "answer",
    [b"", SSE_HEAD, SSE_HEAD + chunked(token("a"), end=False), JSON_HEAD % 9 + b"{"],
    ids=["head", "body", "mid", "json"],
)
async def test_a_client_that_leaves_closes_upstream_in_every_phase(answer: bytes) -> None:
    async with relaying(once(answer)) as setup:
        reader, writer = await post(setup.port)
        await until(lambda: len(setup.server.peers) == 1)
        if answer:
            await reader.readuntil(b"\r\n\r\n")
        writer.close()
        result = await setup.app.result()
        assert result.ended is RelayEnd.CLIENT_GONE
        assert result.started is bool(answer)
        await asyncio.wait_for(setup.server.peers[0].gone.wait(), 5)
        assert "open=0" in repr(setup.app.upstream)


async def test_a_client_that_leaves_while_we_connect() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with socket.create_connection(full.getsockname()):  # its queue is full: the next connection waits
            async with relaying(once(), UpstreamLimits(connect_s_max=60)) as setup:
                setup.app.url = f"http://127.0.0.1:{full.getsockname()[1]}"
                _, writer = await post(setup.port)
                await until(lambda: f"{setup.app.url} open=1" in repr(setup.app.upstream))
                writer.close()
                assert (await setup.app.result()).ended is RelayEnd.CLIENT_GONE
                assert f"{setup.app.url} open=0" in repr(setup.app.upstream)


async def test_a_client_that_does_not_read_stops_upstream_and_may_leave() -> None:
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(SSE_HEAD)
        event = chunked(token("x" * 60_000), end=False)
        try:
            while True:
                await peer.send(event)
                sent += len(event)
        finally:
            peer.gone.set()

    async with relaying(script) as setup:
        _, writer = await post(setup.port)
        writer.transport.pause_reading()
        before = -1
        while sent != before:  # until it can send no more
            before = sent
            await asyncio.sleep(0.03)
        assert 0 < sent < 64 * 1024 * 1024
        writer.transport.abort()
        assert (await setup.app.result()).ended is RelayEnd.CLIENT_GONE
        await asyncio.wait_for(setup.server.peers[0].gone.wait(), 5)


async def test_a_cancellation_from_outside_passes_and_closes_upstream() -> None:
    async with ScriptedUpstream.running(once(SSE_HEAD)) as server:
        upstream = HttpUpstream()
        started = asyncio.Event()

        async def receive() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(_message: Message) -> None:
            started.set()

        request = RelayRequest(server.url, b"POST", b"/", [], b"{}")
        task = asyncio.create_task(relay(receive, send, upstream, request, clock=Ticks()))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.peers[0].gone.wait(), 5)
        assert "open=0" in repr(upstream)
        await upstream.aclose()


async def relay_to(server: ScriptedUpstream, receive: Receive, send: Send) -> RelayResult:
    upstream = HttpUpstream()
    try:
        return await relay(receive, send, upstream, RelayRequest(server.url, b"POST", b"/", [], b"{}"), clock=Ticks())
    finally:
        await upstream.aclose()


async def test_a_client_that_leaves_after_the_last_message_was_served() -> None:
    ended = asyncio.Event()

    async def receive() -> Message:
        await ended.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body" and not message["more_body"]:
            ended.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async with ScriptedUpstream.running(once(JSON_HEAD % 2 + b"{}")) as server:
        assert (await relay_to(server, receive, send)).ended is RelayEnd.COMPLETED


async def test_a_server_that_raises_from_send_means_the_client_is_gone() -> None:
    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            raise BrokenPipeError

    async with ScriptedUpstream.running(once(JSON_HEAD % 2 + b"{}")) as server:
        result = await relay_to(server, receive, send)
        assert (result.ended, result.started) == (RelayEnd.CLIENT_GONE, True)
        await asyncio.wait_for(server.peers[0].gone.wait(), 5)


async def test_two_hundred_streams_at_once_stay_apart() -> None:
    async def script(peer: Peer) -> None:
        while True:
            _, body = await peer.request()
            await peer.send(SSE_HEAD)
            for i in range(5):
                await peer.send(chunked(token(f"{body.decode()}-{i}"), end=False))
                await asyncio.sleep(0)
            await peer.send(chunked(USAGE, DONE))

    async with relaying(script, strip_usage=True) as setup:

        async def one(n: int) -> None:
            _, wire = await read_response(*await post(setup.port, str(n).encode()))
            assert dechunk(wire) == (b"".join(token(f"{n}-{i}") for i in range(5)) + DONE, True)

        await asyncio.gather(*(one(n) for n in range(200)))
        results = [await setup.app.result() for _ in range(200)]
        assert {(result.ended, result.usage) for result in results} == {(RelayEnd.COMPLETED, Usage(7, 2))}
        assert is_idle(repr(setup.app.upstream).strip("<>"))
