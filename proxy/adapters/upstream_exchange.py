"""One request to a replica and its response, on a connection of the pool.

``Exchange`` parses bytes as they arrive, holds the body until ``read`` takes it, and is the ``UpstreamResponse`` the relay sees.
Reading stops while ``BUFFER_BYTES_MAX`` lie unread, so a slow client slows its engine and no memory fills. Every wait has one waker:
head, body, end, failure and room in the write buffer all set it, and the waiting coroutine looks what it was.

How a body ends: by its chunks, its ``Content-Length`` or the close of the connection; the first two cut short are a failure of kind
``reset``. Anything llhttp refuses in its strict mode, a transfer coding other than chunked, and a status outside 200..599 are of kind
``protocol``. Interim (1xx) responses and trailers are dropped.
"""

import asyncio
from collections.abc import Callable

import httptools

from proxy.adapters.upstream_connection import Connection
from proxy.ports import Headers, UpstreamError
from proxy.wire.http_fields import response_fields

BUFFER_BYTES_MAX = 256 * 1024
HEAD_BYTES_MAX = 64 * 1024
_JOINED_BODY_BYTES_MAX = 64 * 1024  # up to here one write of head and body is cheaper than two
_SLICE_BYTES = 256 * 1024


class Exchange:
    """One request on a connection, and its response. Implements ``ports.UpstreamResponse``."""

    def __init__(self, connection: Connection, *, head_only: bool, on_finished: Callable[[Connection], None]) -> None:
        """``head_only``: the request is HEAD, so no body follows. ``on_finished`` takes back a connection that may be used again."""
        self.status = 0
        self.headers: Headers = []
        self._connection: Connection | None = connection
        self._on_finished = on_finished
        self._loop = asyncio.get_running_loop()
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._head_only = head_only
        self._answered = False
        self._fields: Headers = []
        self._head_bytes = 0
        self._head_done = False
        self._until_close = False
        self._sent = False  # the whole request was handed to the transport
        self._keep = True
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._ended = False
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_timeout_s = 0.0
        self._received_s = 0.0
        connection.exchange = self

    # What the pool calls

    async def request(self, head: bytes, body: bytes, head_timeout_s: float | None) -> None:
        """Write the request and wait for the response head, together for at most ``head_timeout_s``. Raises UpstreamError."""
        timer = None
        if head_timeout_s is not None:
            timer = self._loop.call_later(head_timeout_s, self._time_out, f"no response head within {head_timeout_s:g} s")
        try:
            await self._send(head, body)
            while not self._head_done:
                if self._error is not None:
                    raise self._error
                await self._changed()
        finally:
            if timer is not None:
                timer.cancel()

    async def _send(self, head: bytes, body: bytes) -> None:
        """Write the request, in one write where it is small. Returns early when the replica answers before it has all of it."""
        connection = self._connection
        if connection is None:
            return
        if len(body) <= _JOINED_BODY_BYTES_MAX:
            connection.write(head + body)
        else:
            connection.write(head)
            rest = memoryview(body)
            while rest:
                while connection.write_paused and not self._head_done and self._error is None:
                    await self._changed()
                if self._head_done or self._error is not None:
                    return
                connection.write(rest[:_SLICE_BYTES])
                rest = rest[_SLICE_BYTES:]
        self._sent = True

    def watch_idle(self, timeout_s: float) -> None:
        """From now on, fail when the replica sends nothing for ``timeout_s`` while bytes are wanted."""
        if not self._ended:
            self._idle_timeout_s = timeout_s
            self._received_s = self._loop.time()
            self._idle_timer = self._loop.call_later(timeout_s, self._check_idle)

    # What the relay calls

    async def read(self) -> bytes:
        """Body bytes that have arrived, waiting for some; b"" at the end. Raises UpstreamError after the last byte that did arrive."""
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self._ended:
                return b""
            await self._changed()
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks = []
        if self._buffered > BUFFER_BYTES_MAX and self._connection is not None:
            self._received_s = self._loop.time()
            self._connection.resume_reading()
        self._buffered = 0
        return data

    def close(self) -> None:
        """Give the connection back if the response has ended on it, else close it at once. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.exchange = None
        self._parser = None  # it holds our bound methods: without this every exchange were garbage in a cycle
        if not self._ended and self._error is None:
            self._error = UpstreamError("reset", "closed here before its end", answered=self._answered)
            self.wake()
        self._stop()
        if self._ended and self._sent and self._keep and connection.usable:
            connection.resume_reading()
            connection.used = True
            self._on_finished(connection)
        else:
            connection.abort()

    # What the connection calls

    def wake(self) -> None:
        """Something changed: let the waiting coroutine look."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def received(self, data: bytes) -> None:
        """Bytes from the replica."""
        self._answered = True
        if not self._head_done:
            self._head_bytes += len(data)
        self._received_s = self._loop.time()
        parser = self._parser
        if parser is None:  # more than it announced: the surplus is dropped with the connection
            self._keep = False
            return
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self._keep = False
            if not self._ended:
                self._fail("protocol", f"not an HTTP/1.1 response: {exc}")
        if not self._head_done and self._head_bytes > HEAD_BYTES_MAX:
            self._fail("protocol", f"response head above {HEAD_BYTES_MAX} bytes")
        if self._ended or self._error is not None:
            self._parser = None
        elif self._buffered > BUFFER_BYTES_MAX and self._connection is not None:
            self._connection.pause_reading()
        self.wake()

    def lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._keep = False
        if self._until_close and exc is None and self._error is None:
            self._end()
        elif not self._ended:
            where = "in the body" if self._head_done else "before the response head"
            self._fail("reset", f"connection lost {where}" + (f": {exc}" if exc is not None else ""))
        self.wake()

    # What the parser calls; raising here would hide the reason

    def on_message_begin(self) -> None:
        """The first byte of a message, the second of which nobody asked for."""
        if self._ended:
            self._keep = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field, or a trailer after the body, which is dropped."""
        if not self._head_done:
            self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole: decide how the body ends."""
        parser = self._parser
        if parser is None or self._head_done:
            return
        status = parser.get_status_code()
        fields, self._fields = self._fields, []
        if 100 <= status < 200 and status != 101:
            return  # interim: the real head follows
        names = {name for name, _ in fields}
        codings = (
            [value.strip().lower() for name, value in fields if name == b"transfer-encoding"]
            if b"transfer-encoding" in names
            else []
        )
        # What was fed bounds the head; only where that is too much, it may be body bytes that came with it.
        if self._head_bytes > HEAD_BYTES_MAX and sum(len(name) + len(value) + 4 for name, value in fields) > HEAD_BYTES_MAX:
            self._fail("protocol", f"response head above {HEAD_BYTES_MAX} bytes")
        elif not 200 <= status < 600:
            self._fail("protocol", f"status {status} cannot be passed on")
        elif codings and codings != [b"chunked"]:
            self._fail("protocol", f"transfer coding {b', '.join(codings)!r} is not supported")
        else:
            self.status = status
            self.headers = response_fields(fields)
            self._head_done = True
            self._keep = self._keep and parser.should_keep_alive()
            has_length = b"content-length" in names
            if self._head_only:
                self._keep = False  # the parser expects the body that a HEAD response only describes
                self._end()
            self._until_close = not (has_length or codings or self._ended or status in (204, 304))

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if self._error is None and not self._ended:
            self._chunks.append(data)
            self._buffered += len(data)

    def on_message_complete(self) -> None:
        """A message has ended: an interim one or ours."""
        if self._head_done and not self._ended:
            self._end()

    # How it ends

    def _end(self) -> None:
        self._ended = True
        self._stop()

    def _fail(self, kind: str, detail: str) -> None:
        if self._error is not None:
            return
        connection = self._connection
        reused = connection is not None and connection.used and kind == "reset" and not self._answered
        self._error = UpstreamError(kind, detail, answered=self._answered, reused=reused)
        self._stop()
        if connection is not None:
            connection.abort()

    def _time_out(self, detail: str) -> None:
        if not self._ended:
            self._fail("timeout", detail)
            self.wake()

    def _check_idle(self) -> None:
        # One timer a response, moved on lazily: setting one per chunk would cost more than parsing the chunk.
        if self._chunks:  # it is the client that is slow
            self._received_s = self._loop.time()
        due_s = self._received_s + self._idle_timeout_s
        if due_s <= self._loop.time():
            self._time_out(f"nothing received for {self._idle_timeout_s:g} s")
        else:
            self._idle_timer = self._loop.call_at(due_s, self._check_idle)

    def _stop(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    async def _changed(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
