"""A relay in a real uvicorn before scripted upstream sockets, for the tests of every phase."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from proxy.adapters.upstream import HttpUpstream, UpstreamLimits
from proxy.ports import ClientLink, Message, Receive, Send
from proxy.serving.client import link_in
from proxy.serving.relay import relay
from proxy.serving.relay_result import RelayEnd, RelayRequest, RelayResult
from tests.support.upstream_servers import Peer, Script, ScriptedUpstream, asgi_server, post, read_response

SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2}}\n\n'

LINKED = True  # whether the server offers its shorter way to the client


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


class Linked:
    """A ``send`` that carries the server's shorter way to the client, as the one of a request does."""

    def __init__(self, send: Send, link: ClientLink | None) -> None:
        self.rest, self.link = send, link
        self.rest_now = None if link is None else link.write_now

    async def __call__(self, message: Message) -> None:
        await self.rest(message)


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
        linked = Linked(send, link_in(scope))
        result = await relay(receive, linked, self.upstream, request, clock=Ticks(), **self.options)
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
        async with asgi_server(app, ours=LINKED) as port:
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
