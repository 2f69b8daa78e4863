"""Clients, scripts and readers for the tests of the upstream client."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from proxy.adapters.upstream import HttpUpstream, UpstreamLimits
from proxy.ports import UpstreamResponse
from tests.support.upstream_servers import Peer, Script, ScriptedUpstream

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def client(**limits: object) -> AsyncIterator[HttpUpstream]:
    upstream = HttpUpstream(UpstreamLimits(**limits))
    try:
        yield upstream
    finally:
        await upstream.aclose()
        assert "open=0" in repr(upstream) or "no origins" in repr(upstream)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 (the pool has no event for a closed idle connection)
            await asyncio.sleep(0.001)


async def read_all(response: UpstreamResponse, parts: list[bytes] | None = None) -> bytes:
    parts = [] if parts is None else parts
    while part := await response.read():
        parts.append(part)
    response.close()
    return b"".join(parts)


async def post(upstream: HttpUpstream, server: ScriptedUpstream, body: bytes = b"{}") -> UpstreamResponse:
    return await upstream.open(server.url, b"POST", b"/x", [(b"a", b"b")], body)


def answering(answer: bytes) -> Script:
    """Answers every request with these bytes; closes when it is not asked again."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(answer)

    return script


def once(*steps: bytes | Callable[[Peer], None]) -> Script:
    """Answers the first request with these bytes or actions, then closes."""

    async def script(peer: Peer) -> None:
        await peer.request()
        for step in steps:
            if isinstance(step, bytes):
                await peer.send(step)
            else:
                step(peer)

    return script
