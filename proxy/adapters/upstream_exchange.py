"""One request to a replica and its response, on a connection of the pool.

``Exchange`` parses bytes as they arrive, holds the body until ``read`` takes it, and is the ``UpstreamResponse`` the relay sees.
A slow client slows its engine (``adapters.upstream_unread``). Every wait has one waker: head, body, end, failure and room in the write
buffer all set it, and the waiting coroutine looks what it was. What all exchanges share (``Wheel``) looks at its three patiences
(``Patience``): a timer of its own would cost more than parsing an answer. A chunked body whose chunks come whole, as those of event
streams do, is read without a parser from its second read on (``adapters.upstream_chunks``).

How a body ends: by its chunks, its ``Content-Length`` or the close of the connection; the first two cut short are a failure of kind
``reset``. Anything llhttp refuses in its strict mode, a transfer coding other than chunked, and a status outside 200..599 are of kind
``protocol``. Interim (1xx) responses and trailers are dropped; of them, as of chunk extensions, ``HEAD_BYTES_MAX`` may come in a row.
"""

import asyncio
from collections.abc import Callable
from functools import partial

import httptools

from proxy.adapters.upstream_bounds import Buffered, Over, Patience, Wheel
from proxy.adapters.upstream_chunks import read_chunks, resumed
from proxy.adapters.upstream_connection import Connection
from proxy.adapters.upstream_head import HEAD_BYTES_MAX, head_fault
from proxy.adapters.upstream_unread import BUFFER_BYTES_UNCOUNTED, Unread
from proxy.ports import Headers, UpstreamError
from proxy.wire.http_fields import response_fields

_NO_FIELDS: Headers = []  # for all whose head is whole
_JOINED_BODY_BYTES_MAX = 64 * 1024  # up to here one write of head and body is cheaper than two


def _done(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Exchange(Unread):
    """One request on a connection, and its response. Implements ``ports.UpstreamResponse``."""

    __slots__ = (
        "_answered", "_bare_bytes", "_between_chunks", "_chunked", "_ended", "_error", "_fields", "_head_done", "_head_only", "_keep",
        "_loop", "_on_finished", "_over", "_parser", "_sent", "_take", "_until_close", "_waiter", "headers", "status",
    )  # fmt: skip

    def __init__(
        self, connection: Connection, *, head_only: bool, on_finished: Callable[[Connection], None], buffered: Buffered, wheel: Wheel
    ) -> None:  # fmt: skip
        """``head_only``: the request is HEAD, so no body follows. ``on_finished`` takes back a connection that may be used again."""
        super().__init__(wheel, connection, buffered)
        self.status = 0
        self.headers: Headers = []
        self._on_finished = on_finished
        self._loop = wheel.loop  # to ask asyncio for it is a system call
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._head_only = head_only
        self._answered = self._head_done = self._until_close = self._chunked = False
        self._between_chunks = False  # and no parser is there, for none was needed so far
        self._sent = False  # the whole request was handed to the transport
        self._fields: Headers = []
        self._bare_bytes = 0  # since the last of the body: head, chunk extensions and trailers have no other bound
        self._keep = True
        self._ended = False  # the last byte of the body has come
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._take: Callable[[bytes], bool] | None = None
        self._over: Callable[[], None] | None = None  # nothing is taken any more
        connection.exchange = self

    # What the pool calls

    async def request(self, head: bytes, body: bytes, patience: Patience) -> None:
        """Write the request and wait for the response head. Raises UpstreamError, and ``read`` does when ``patience`` ends later."""
        self._patience = patience
        self._asked_s = self._received_s = self._loop.time()
        self._wind(self._asked_s)
        connection = self._connection
        if connection is None:
            pass  # closed before it began: told below
        elif len(body) > _JOINED_BODY_BYTES_MAX:
            self._sent = await connection.write_in_pieces(head, body, self._is_over, self._changed)
        else:
            connection.write(head + body)
            self._sent = True
        while not self._head_done:
            if self._error is not None:
                raise self._error
            await self._changed()

    def _is_over(self) -> bool:
        """Whether nobody reads more of the request."""
        return self._head_done or self._error is not None

    # What the relay calls

    @property
    def at_end(self) -> bool:
        """Whether all of the body was read."""
        return self._ended and not self._chunks

    async def read(self) -> bytes:
        """Body bytes that have arrived, waiting for some; b"" at the end. Raises UpstreamError after the last byte that did arrive."""
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self._ended:
                return b""
            await self._changed()
        return self._taken()

    def pour(self, take: Callable[[bytes], bool]) -> asyncio.Future[None]:
        """Hand body bytes to ``take`` as they arrive; done when it has no room for more or none will come, or for nothing.

        Who does not wait for it to its end closes the response. (A coroutine's frame would lie here as long as the stream flows.)
        """
        poured = self._loop.create_future()
        if self.flow(take, partial(_done, poured)):
            return poured
        poured.set_result(None)
        return poured

    def flow(self, take: Callable[[bytes], bool], over: Callable[[], None]) -> bool:
        """As ``pour``, but ``over`` is called once in its stead; False: it is over already, and ``over`` is not called."""
        if (self._chunks and not take(self._taken())) or self._ended or self._error is not None:
            return False
        self._take, self._over = take, over
        return True

    def close(self) -> None:
        """Give the connection back if the response has ended on it, else close it at once. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.exchange = None
        if self._counted:
            self._give_back()
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
        waiter, over = self._waiter, self._over
        self._take = self._over = None
        if waiter is not None:
            _done(waiter)
        if over is not None:
            over()

    def received(self, data: bytes) -> None:
        """Bytes from the replica."""
        self._received_s = self._wheel.now_s()
        if self._between_chunks:
            piece = read_chunks(data)
            if piece is not None:
                self._begun = True
                if self._take is None:
                    self.on_body(piece)
                    self._pass_on()
                elif not self._take(piece):
                    self.wake()
                return
            self._between_chunks, self._parser = False, resumed(self)
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        first, self._answered = not self._answered, True
        self._bare_bytes += len(data)
        buffered = self._buffered
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
        if self._buffered != buffered:
            self._bare_bytes = 0
        elif self._bare_bytes > HEAD_BYTES_MAX and not self._ended:
            what = "framing without a byte of the body" if self._head_done else "response head"
            self._fail("protocol", f"{what} above {HEAD_BYTES_MAX} bytes")
        if first and self._chunked and not self._ended and self._error is None:
            _, _, rest = data.partition(b"\r\n\r\n")  # the head's end, where no interim head came with it
            if not rest or read_chunks(rest) is not None:
                self._between_chunks, self._parser = True, None
        self._pass_on()

    def _pass_on(self) -> None:
        """Something came, or the end did: hand it to whoever takes it, or wake who waits."""
        take = self._take
        if take is not None and (not self._chunks or take(self._taken())) and not self._ended and self._error is None:
            return
        if self._ended or self._error is not None:
            self._parser = None
        elif self._buffered > BUFFER_BYTES_UNCOUNTED and self._connection is not None:
            self._hold(self._connection)
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
        by_name = dict(fields)
        fault = head_fault(status, fields, by_name, self._bare_bytes)
        if fault is not None:
            self._fail("protocol", fault)
        else:
            self.status = status
            self.headers = response_fields(fields)
            self._head_done, self._bare_bytes, self._fields = True, 0, _NO_FIELDS
            self._keep = self._keep and parser.should_keep_alive()
            if self._head_only:
                self._keep = False  # the parser expects the body that a HEAD response only describes
                self._end()
            self._chunked = b"transfer-encoding" in by_name and not self._ended
            bounded = b"content-length" in by_name or self._chunked or status in (204, 304)
            self._until_close = not (bounded or self._ended)

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if self._error is None and not self._ended:
            self._chunks.append(data)
            self._buffered += len(data)
            self._begun = True

    def on_message_complete(self) -> None:
        """A message has ended: an interim one or ours."""
        if self._head_done and not self._ended:
            self._end()

    # How it ends

    def _end(self) -> None:
        self._ended = True
        self._stop()

    def _fail(self, kind: str, detail: str, limit: str = "") -> None:
        if self._error is not None:
            return
        self._between_chunks = False
        connection = self._connection
        reused = connection is not None and connection.used and kind == "reset" and not self._answered
        self._error = UpstreamError(kind, detail, answered=self._answered, reused=reused, limit=limit)
        self._stop()
        if connection is not None:
            connection.abort()

    def _ran_out(self, over: Over) -> None:
        if not self._ended:
            self._fail("timeout", over.told, over.key)
            self.wake()

    async def _changed(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
