"""One TCP connection to a replica: the transport's protocol, and whether it may be used again.

A connection carries one exchange at a time; requests are not pipelined. Probes of the operating system watch it (first after
``KEEPALIVE_IDLE_S``, given up after about a minute): a replica whose host vanished is noticed though a response may take for ever.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from proxy.adapters.upstream_exchange import Exchange

KEEPALIVE_IDLE_S = 30
_SLICE_BYTES = 256 * 1024
_KEEPALIVE_OPTIONS = (
    ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
)  # named differently elsewhere


def watch_peer(transport: asyncio.BaseTransport) -> None:
    """Let the operating system probe a peer that says nothing."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE_OPTIONS:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Connection(asyncio.Protocol):
    """A connection to one origin. ``on_closed`` is called once, when the transport is gone."""

    __slots__ = ("_on_closed", "_paused", "exchange", "idle_since_s", "transport", "used", "write_paused")

    def __init__(self, on_closed: Callable[["Connection"], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.used = False  # a response was finished on it before
        self.idle_since_s = 0.0
        self.write_paused = False
        self._paused = False
        self._on_closed = on_closed

    @property
    def usable(self) -> bool:
        """Whether another request may be sent on it."""
        return self.exchange is None and self.transport is not None and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport's side."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are not of that class, but alike
        watch_peer(transport)

    def data_received(self, data: bytes) -> None:
        """The transport's side."""
        if self.exchange is None:
            self.abort()  # nothing was asked, so what comes cannot be told from the next answer
        else:
            self.exchange.received(data)

    def eof_received(self) -> bool:
        """The transport's side: close when the peer does."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport's side."""
        self.transport = None
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.lost(exc)
        self._on_closed(self)

    def pause_writing(self) -> None:
        """The transport's side."""
        self.write_paused = True

    def resume_writing(self) -> None:
        """The transport's side."""
        self.write_paused = False
        if self.exchange is not None:
            self.exchange.wake()

    def pause_reading(self) -> None:
        """Let the peer wait."""
        if not self._paused and self.transport is not None and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on after ``pause_reading``."""
        if self._paused and self.transport is not None and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    def write(self, data: bytes | memoryview) -> None:
        """Hand bytes to the transport; dropped when it is gone, which ``connection_lost`` has told or will tell."""
        if self.transport is not None:
            self.transport.write(data)

    async def write_in_pieces(
        self, head: bytes, body: bytes, over: Callable[[], bool], changed: Callable[[], Awaitable[None]]
    ) -> bool:  # fmt: skip
        """Write a long request as its replica takes it; False where it was ``over`` before: the replica has answered, or is gone.

        ``changed`` waits until there may be room, or it may be over.
        """
        self.write(head)
        rest = memoryview(body)
        while rest:
            while self.write_paused and not over():
                await changed()
            if over():
                return False
            self.write(rest[:_SLICE_BYTES])
            rest = rest[_SLICE_BYTES:]
        return True

    def abort(self) -> None:
        """Close at once, without sending what is still buffered."""
        if self.transport is not None:
            self.transport.abort()
