"""The relay between a real client, a real uvicorn and real upstream sockets, in every phase and way a request can end."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.adapters.upstream import HttpUpstream, UpstreamLimits
from proxy.serving.relay import OPENAI_CUT_OFF, Message, Receive, RelayEnd, RelayHooks, RelayRequest, RelayResult, Send, relay
from proxy.wire.answer_usage import Usage
from tests.support.upstream_servers import Peer, Script, ScriptedUpstream, asgi_server, dechunk, post, read_response

SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2}}\n\n'


def token(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c", "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


def chunked(*parts: bytes, end: bool = True) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + (b"0\r\n\r\n" if end else b"")


class Ticks:
    """A clock that moves by one second whenever it is asked."""

    def __init__(self) -> None:
        self.t = 0.0

    def now_s(self) -> float:
        self.t += 1
        return self.t

    def wall_s(self) -> float:
        return self.t


class App:
    """Relays everything to one upstream; a relay that left the client without a head is answered 502."""

    def __init__(self, upstream: HttpUpstream, url: str, options: dict[str, Any]) -> None:
        self.upstream = upstream
        self.url = url
        self.options = options
        self.results: asyncio.Queue[RelayResult] = asyncio.Queue()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        request = RelayRequest(self.url, scope["method"].encode(), target, scope["headers"], body)
        result = await relay(receive, send, self.upstream, request, clock=Ticks(), **self.options)
        self.results.put_nowait(result)
        if not result.started and result.ended is not RelayEnd.CLIENT_GONE:
            await send({"type": "http.response.start", "status": 502, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    async def result(self) -> RelayResult:
        return await asyncio.wait_for(self.results.get(), 5)


class Setup:
    """An upstream running a script, the app, and its port; ``finish`` proves that nothing is left open."""

    def __init__(self, server: ScriptedUpstream, app: App, port: int) -> None:
        self.server = server
        self.app = app
        self.port = port

    async def exchange(self, body: bytes = b"{}") -> tuple[bytes, bytes, RelayResult]:
        head, wire = await read_response(*await post(self.port, body))
        return head, wire, await self.app.result()


@asynccontextmanager
async def relaying(script: Script, limits: UpstreamLimits | None = None, **options: Any) -> AsyncIterator[Setup]:
    tasks_before = asyncio.all_tasks()
    upstream = HttpUpstream(limits)
    async with ScriptedUpstream.running(script) as server:
        app = App(upstream, server.url, options)
        async with asgi_server(app) as port:
            yield Setup(server, app, port)
            # nothing may still be in use: whatever is open waits in the pool, and no watcher outlives its request
            await until(lambda: all(part.count("open=") == 0 or is_idle(part) for part in repr(upstream).split(", ")))
        await upstream.aclose()
        assert "open=0 idle=0" in repr(upstream) or "no origins" in repr(upstream)
    await until(lambda: asyncio.all_tasks() <= tasks_before)


def is_idle(pool: str) -> bool:
    counts = dict(word.rstrip(">").split("=") for word in pool.split() if word.startswith(("open=", "idle=")))
    return counts["open"] == counts["idle"]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0.001)


def once(*answers: bytes) -> Script:
    """Answers the first request with these writes, then waits for the other side to close."""

    async def script(peer: Peer) -> None:
        await peer.request()
        for answer in answers:
            await peer.send(answer)
        await peer.until_gone()

    return script


def then_close(*answers: bytes) -> Script:
    """Answers the first request with these bytes, then closes."""

    async def script(peer: Peer) -> None:
        await peer.request()
        for answer in answers:
            await peer.send(answer)

    return script


async def test_a_json_answer_is_copied_and_read() -> None:
    body = json.dumps(
        {"choices": [{"index": 0, "finish_reason": "stop"}], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    ).encode()
    answer = b"HTTP/1.1 201 Created\r\n" + (JSON_HEAD % len(body)).partition(b"\r\n")[2] + body
    async with relaying(once(answer)) as setup:
        head, wire, _ = await setup.exchange()
        assert head.startswith(b"HTTP/1.1 201")
        assert wire == body
    async with relaying(once(JSON_HEAD % len(body) + body)) as setup:
        head, wire, result = await setup.exchange()
        assert b"content-type: application/json\r\ncontent-length: %d" % len(body) in head
        assert wire == body
        assert result.ended is RelayEnd.COMPLETED
        assert result.usage == Usage(7, 2, None, ("stop",))
        assert (result.status, result.bytes_sent, result.tokens_seen, result.finish_reasons) == (200, len(body), 2, ("stop",))
        assert not result.is_stream


async def test_the_request_arrives_as_it_was_sent() -> None:
    got: list[tuple[bytes, bytes]] = []

    async def script(peer: Peer) -> None:
        got.append(await peer.request())
        await peer.send(JSON_HEAD % 2 + b"{}")
        await peer.until_gone()

    body = b'{ "odd" :\t1 }\xff' * 100_000
    async with relaying(script) as setup:
        await setup.exchange(body)
    assert got == [
        (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-length: %d\r\n\r\n"
            % (setup.server.port, len(body)),
            body,
        )
    ]


async def test_a_stream_is_copied_and_read() -> None:
    events = [token("a"), b": keep-alive\n\n", token("b"), token("", "stop"), USAGE, DONE]
    async with relaying(once(SSE_HEAD, chunked(*events)), extra_headers=[(b"x-kvgate-outcome", b"completed")]) as setup:
        head, wire, result = await setup.exchange()
        assert b"content-type: text/event-stream; charset=utf-8" in head
        assert b"x-kvgate-outcome: completed" in head
        assert dechunk(wire) == (b"".join(events), True)
        assert result.ended is RelayEnd.COMPLETED
        assert result.usage == Usage(7, 2, None, ("stop",))
        assert (result.is_stream, result.stream_done, result.stream_failed) == (True, True, False)
        assert result.first_byte_s is not None
        assert result.last_byte_s is not None
        assert result.first_byte_s <= result.last_byte_s
        assert result.bytes_sent == len(b"".join(events))


async def test_usage_that_only_we_asked_for_is_taken_out() -> None:
    events = [token("a"), token("", "stop"), USAGE, DONE]
    async with relaying(once(SSE_HEAD, chunked(*events)), strip_usage=True) as setup:
        _, wire, result = await setup.exchange()
        assert dechunk(wire) == (b"".join(events).replace(USAGE, b""), True)
        assert result.usage == Usage(7, 2, None, ("stop",))


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n\r\n",
            USAGE,
        ),  # compressed: unseen, unchanged
        (b"HTTP/1.1 200 OK\r\n\r\n", bytes(range(256)) * 4000),
        (b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\r\n", b'{"error":"scaling"}'),
    ],
)
async def test_other_bodies_are_copied(head: bytes, body: bytes) -> None:
    async with relaying(then_close(head, body), strip_usage=True) as setup:
        got, wire, result = await setup.exchange()
        assert got.split()[1] == head.split()[1]
        assert dechunk(wire) == (body, True)
        assert (result.ended, result.usage, result.bytes_sent) == (RelayEnd.COMPLETED, None, len(body))


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified\r\ncontent-length: 9"])
async def test_answers_without_a_body(status: bytes) -> None:
    async with relaying(once(b"HTTP/1.1 " + status + b"\r\n\r\n")) as setup:
        head, wire, result = await setup.exchange()
        assert head.startswith(b"HTTP/1.1 " + status[:3])
        assert (wire, result.ended) == (b"", RelayEnd.COMPLETED)


async def test_hooks_are_called_in_order() -> None:
    calls: list[object] = []
    hooks = RelayHooks(on_head=calls.append, on_first_byte=lambda: calls.append("byte"), on_progress=calls.append)
    read = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(SSE_HEAD + chunked(b": hello\n\n", end=False))
        await until(lambda: "byte" in calls)
        await peer.send(chunked(token("a"), token("b"), end=False))
        await until(lambda: 2 in calls)
        await peer.send(chunked(USAGE, DONE))
        await read.wait()

    async with relaying(script, hooks=hooks) as setup:
        _, _, result = await setup.exchange()
        read.set()
    assert calls == [200, "byte", 2, 2]
    assert result.first_token_s is not None
    assert result.first_byte_s is not None
    assert result.first_token_s > result.first_byte_s


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 2", b"garbage\r\n\r\n"])
async def test_a_failure_before_the_head_leaves_the_client_to_the_caller(answer: bytes) -> None:
    async with relaying(then_close(answer)) as setup:
        head, _, result = await setup.exchange()
        assert head.startswith(b"HTTP/1.1 502")
        assert (result.ended, result.started, result.status) == (RelayEnd.FAILED_BEFORE_HEAD, False, None)
        assert result.error is not None


async def test_a_refused_status_leaves_the_client_to_the_caller() -> None:
    answer = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nfull"
    async with relaying(once(answer), refuse_statuses=frozenset({503})) as setup:
        head, _, result = await setup.exchange()
        assert head.startswith(b"HTTP/1.1 502")
        assert (result.ended, result.started, result.status) == (RelayEnd.REFUSED, False, 503)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (token("a"), token("a") + OPENAI_CUT_OFF),
        (token("a") + b'data: {"id', token("a") + b'data: {"id\n\n' + OPENAI_CUT_OFF),
        (b"", OPENAI_CUT_OFF),
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
