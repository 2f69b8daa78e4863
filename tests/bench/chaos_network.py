"""Between kvgate and one mock replica: a TCP relay that resets, delays, answers garbage or errors, on demand."""

import asyncio
from contextlib import suppress
from enum import StrEnum

GARBAGE = b"\x16\x03\x01\x02\x00\x01\x00 this is no HTTP\r\n\r\n"
ERROR = b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: text/plain\r\ncontent-length: 5\r\nconnection: close\r\n\r\nchaos"
SLOW_S = 0.05  # for each read, both ways
HEAD_END = b"\r\n\r\n"


class Way(StrEnum):
    """What becomes of what comes this way."""

    PASS = "pass"
    SLOW = "slow"
    GARBAGE = "garbage"  # every new connection is answered with it
    ERRORS = "errors"  # every new connection that posts is answered 500


class Wire:
    """One replica's way in: listens on ``port`` of its own, forwards to ``target``."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.way = Way.PASS
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def reset(self) -> None:
        """Every connection is lost at once."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def close(self) -> None:
        """Stop listening and hang up."""
        if self._server is not None:
            self._server.close()
        self.reset()  # which ends whatever is being carried
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            with suppress(ConnectionError, OSError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(65536)
        if not first:
            return
        posts = first.startswith(b"POST")
        if posts and self.way in {Way.GARBAGE, Way.ERRORS}:
            writer.write(GARBAGE if self.way is Way.GARBAGE else ERROR)
            await writer.drain()
            return
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers.add(back_writer)
        try:
            back_writer.write(first)
            pipes = [asyncio.create_task(self._pipe(*ends)) for ends in ((reader, back_writer), (back_reader, writer))]
            try:
                await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pipe in pipes:
                    pipe.cancel()
                await asyncio.gather(*pipes, return_exceptions=True)
        finally:
            self._writers.discard(back_writer)
            back_writer.transport.abort()

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self.way is Way.SLOW:
                await asyncio.sleep(SLOW_S)
            writer.write(data)
            await writer.drain()
