"""Real TCP peers for the relay's tests: a scripted upstream that can hang, lie or die at any step, a raw client, an ASGI server."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import uvicorn

from proxy.adapters.http_protocol import BoundedHttpProtocol, ConnectionRules


class Peer:
    """One accepted connection, seen from the upstream's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.gone = asyncio.Event()  # set by until_gone

    async def request(self) -> tuple[bytes, bytes]:
        """Head (with its empty line) and body of the next request. IncompleteReadError when there is none."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            if line.startswith(b"content-length: "):
                length = int(line[16:])
        return head, await self.reader.readexactly(length)

    async def send(self, data: bytes) -> None:
        """Write and wait until the kernel has taken it."""
        self.writer.write(data)
        await self.writer.drain()

    async def until_gone(self) -> None:
        """Wait until the other side has closed or reset the connection."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.gone.set()

    def reset(self) -> None:
        """Close with RST."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.writer.transport.abort()


def abort(writer: asyncio.StreamWriter) -> None:
    """Close at once, unless it is closed already: asyncio's transport breaks on that where what it still had to send has gone out since."""
    transport = writer.transport
    if not transport.is_closing() or transport.get_write_buffer_size():
        transport.abort()


Script = Callable[[Peer], Awaitable[None]]


class ScriptedUpstream:
    """Runs ``script`` on every connection and closes it when the script returns."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.peers: list[Peer] = []
        self.url = ""
        self.port = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self.peers.append(peer)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await self._script(peer)
        finally:
            writer.close()

    @classmethod
    @asynccontextmanager
    async def running(cls, script: Script, **options: Any) -> "AsyncIterator[ScriptedUpstream]":
        """Listen on a free port. ``options`` go to asyncio.start_server (``ssl``)."""
        self = cls(script)
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, **options)
        self.port = server.sockets[0].getsockname()[1]
        self.url = f"{'https' if 'ssl' in options else 'http'}://127.0.0.1:{self.port}"
        try:
            yield self
        finally:
            server.close()
            for peer in self.peers:
                abort(peer.writer)
            await server.wait_closed()


@asynccontextmanager
async def gateway(backends: list[int], flowing: asyncio.Event | None = None) -> AsyncIterator[int]:
    """Forward the connections to one port to several in turn; which ones may be changed while it runs. None: hang up.

    Bytes go either way only while ``flowing`` is set.
    """
    turn = 0
    pipes: set[asyncio.Task[None]] = set()
    writers: set[asyncio.StreamWriter] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if flowing is not None:
                    await flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turn
        if not backends:
            writer.transport.abort()
            return
        turn += 1
        try:
            back_reader, back_writer = await asyncio.open_connection("127.0.0.1", backends[turn % len(backends)])
        except ConnectionError:
            writer.transport.abort()
            return
        writers.update((writer, back_writer))
        pipes.update((asyncio.create_task(pipe(reader, back_writer)), asyncio.create_task(pipe(back_reader, writer))))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            abort(writer)
        if flowing is not None:
            flowing.set()
        await asyncio.gather(*pipes, return_exceptions=True)
        await server.wait_closed()


def dechunk(body: bytes) -> tuple[bytes, bool]:
    """A chunked body's content, and whether its last chunk was there."""
    content = b""
    while body:
        size_text, _, rest = body.partition(b"\r\n")
        size = int(size_text, 16)
        if size == 0:
            return content, rest == b"\r\n"
        content += rest[:size]
        if len(rest) < size + 2:
            return content, False
        body = rest[size + 2 :]
    return content, False


@asynccontextmanager
async def asgi_server(app: Any, *, ours: bool = False) -> AsyncIterator[int]:
    """Serve ``app`` with uvicorn (httptools) on this loop, ``ours``: by the protocol that kvgate's ports have; yields the port."""
    rules = ConnectionRules(64 * 1024, 60.0, 60.0, lambda _: None, lambda: False)
    http: Any = partial(BoundedHttpProtocol, lambda: rules) if ours else "httptools"
    config = uvicorn.Config(
        app, http=http, lifespan="off", log_config=None, access_log=False, server_header=False, date_header=False
    )
    async with served(config) as port:
        yield port


@asynccontextmanager
async def served(config: uvicorn.Config) -> AsyncIterator[int]:
    """Serve on this loop by a configuration; yields the port."""
    server = uvicorn.Server(config)
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # named: asyncio sets TCP_NODELAY only then
    listener.bind(("127.0.0.1", 0))
    listener.listen(512)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    try:
        yield listener.getsockname()[1]
    finally:
        # Server.shutdown sleeps a tenth of a second; tests are many
        for listening in server.servers:
            listening.close()
        for connection in list(server.server_state.connections):
            connection.shutdown()
        listener.close()


async def post(
    port: int, body: bytes = b"{}", *, path: bytes = b"/v1/chat/completions"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a POST over a connection of its own, which the server closes after the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (path, len(body), body))
    return reader, writer


async def read_response(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[bytes, bytes]:
    """Head and body bytes as they stand on the wire, up to the close."""
    try:
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return head, body
