"""kvgate on its own port settings before a replica that keeps every byte it gets, and a client that sends any bytes at all."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from proxy import app
from proxy.adapters.web_server import server_config
from tests.integration.serving.harness import RunningProxy, answer_like_vllm, proxying
from tests.support.upstream_servers import Peer, ScriptedUpstream, served

PROBES = re.compile(rb"user-agent: (kvgate|python-httpx)/", re.IGNORECASE)  # what kvgate asks for itself
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


@dataclass(slots=True)
class Recorder:
    """What came to the replica beside probes: each request's head and body as they stood on the wire."""

    requests: list[tuple[bytes, bytes]] = field(default_factory=list)
    strays: list[bytes] = field(default_factory=list)  # bytes that belong to no request
    answer: bytes = OK
    probed: Callable[[Peer, bytes], Awaitable[None]] = answer_like_vllm
    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, peer: Peer) -> None:
        while True:
            try:
                head, body = await peer.request()
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    self.strays.append(error.partial)
                return
            if PROBES.search(head):
                await self.probed(peer, head)
                return
            self.requests.append((head, body))
            await self.let_go.wait()
            await peer.send(self.answer)

    @property
    def lines(self) -> list[bytes]:
        """First lines of the requests."""
        return [head.partition(b"\r\n")[0] for head, _ in self.requests]


@dataclass(slots=True)
class Hostile:
    """The port, and what is behind it."""

    proxy: RunningProxy
    port: int
    replica: Recorder

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def say(self, *pieces: bytes) -> bytes:
        """Send bytes, a read of the server's for each piece, then ask to close; return everything until the server has closed."""
        reader, writer = await self.connect()
        for piece in pieces:
            writer.write(piece)
            with suppress(ConnectionError):
                await writer.drain()
            await asyncio.sleep(0)
        return await rest(reader, writer)


async def dribble(port: int, first: bytes, again: bytes) -> bytes:
    """Send a beginning and then a little again and again; return what the server says before it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(first)
    answer = asyncio.ensure_future(reader.read(65536))
    while not answer.done():
        writer.write(again)
        await asyncio.wait([answer], timeout=0.05)
    writer.transport.abort()
    return answer.result()


async def rest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Everything until the server closes, or resets, which it may when more came than it read."""
    got = b""
    async with asyncio.timeout(10):
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                got += data
    writer.close()
    return got


def statuses(raw: bytes) -> list[int]:
    """The statuses of the responses that begin in these bytes."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", raw)]


@asynccontextmanager
async def hostile(**limits: Any) -> AsyncIterator[Hostile]:
    """Serve, with these limits in the policy, as ``kvgate serve`` does."""
    policy: Mapping[str, Any] = {"limits": limits, "mode": "off"}
    recorder = Recorder()
    recorder.let_go.set()
    async with ScriptedUpstream.running(recorder) as upstream, proxying(upstream.url, policy=policy) as proxy:
        async with served(server_config(proxy.endpoints, partial(app.connection_rules, proxy.services))) as port:
            yield Hostile(proxy, port, recorder)
        await proxy.until_idle()
