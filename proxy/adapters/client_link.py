"""The shorter way to the client that kvgate's own HTTP protocol offers beside ASGI's (``ports.ClientLink``).

ASGI has one message and two coroutines for each piece of a stream, and a task for whoever wants to know that the client left. A piece of
an event stream is passed on in the callback that brought it instead, and the leaving is told by a call. A head goes out with the first
piece of its body, and a short answer is one write.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from proxy.adapters.cycle import Cycle
from proxy.ports import Headers

_NO_BODY = frozenset({204, 304})
# What uvicorn's ``send`` asks of a request whose answer has begun, by its method, of which llhttp knows 35.
_SCOPES: dict[str, Any] = {}
_NO_BYTES = bytearray()  # of all requests that were read


class ClientLink:
    """Of one connection. ``cycle`` is the request that is being answered on it."""

    __slots__ = ("_flow", "_leave", "_loop", "_tasks", "_transport", "cycle", "forget_parser")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, flow: FlowControl, tasks: set[asyncio.Task[None]]
    ) -> None:  # fmt: skip
        """``tasks``: those of the server's requests."""
        self.cycle: Cycle | None = None
        self._loop = loop
        self._tasks = tasks
        self._transport = transport
        self._flow = flow
        self._leave: Callable[[], None] | None = None
        self.forget_parser: Callable[[], None] | None = None

    def write_now(self, piece: bytes) -> bool:
        """Write a piece of a body of unknown length whose head is out; False: nothing was written, and ``send`` is the way."""
        cycle = self.cycle
        if (
            cycle is None
            or self._flow.write_paused
            or cycle.disconnected
            or cycle.response_complete
            or not cycle.chunked_encoding
        ):
            return False
        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    def begin_now(self, status: int, headers: Headers, piece: bytes, *, whole: bool) -> bool:
        """Write a head and the first piece of its body, ``whole`` where that is all of it; False: nothing was written.

        Names are in lower case. Declines what is not plain: a head that names ``connection``, a body that must not be there, a length that
        is another than the piece's.
        """
        cycle = self.cycle
        if (
            cycle is None
            or self._flow.write_paused
            or cycle.disconnected
            or cycle.response_started
            or status in _NO_BODY
            or cycle.scope["method"] == "HEAD"
            or cycle.default_headers
        ):
            return False
        told = dict(headers)
        length = told.get(b"content-length")
        sized = length is not None
        if b"connection" in told or b"transfer-encoding" in told or (sized and not whole):
            return False
        lines = [name + b": " + value for name, value in headers]
        if not sized:
            lines.append(b"transfer-encoding: chunked")
            piece = (b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b"") + (b"0\r\n\r\n" if whole else b"")
        elif length != b"%d" % len(piece):
            return False
        if not cycle.keep_alive:
            lines.append(b"connection: close")
        head = b"\r\n".join(lines)
        breaks = len(lines) - 1
        if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b"\0" in head:
            return False  # a field would end early: ``send`` says so
        self._transport.write(b"%b%b\r\n\r\n%b" % (STATUS_LINE[status], head, piece))
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        cycle.chunked_encoding = not sized
        if whole:
            cycle.response_complete = True
            cycle.message_event.set()
            if not cycle.keep_alive:
                self._transport.close()
            cycle.on_response()
        return True

    def forget_request(self) -> None:
        """Let go of the request that is being answered, where a part of its answer is out."""
        cycle = self.cycle
        if cycle is None or not cycle.response_started:
            return
        if self.forget_parser is not None:
            self.forget_parser()
        scope: Any = cycle.scope
        cycle.scope = _SCOPES.setdefault(scope["method"], {"method": scope["method"]})
        scope["headers"].clear()
        scope.clear()
        if not cycle.more_body:
            cycle.body = _NO_BYTES

    def flow_on(self) -> None:
        """The application returns before its answer is whole."""
        cycle = self.cycle
        if cycle is not None:
            cycle.flows_on = True

    def go_on(self, rest: Callable[..., Awaitable[None]]) -> None:
        """Run the ``rest`` of an answer that flowed on as its application, in a task of its own."""
        cycle = self.cycle
        if cycle is None:
            raise RuntimeError("nothing flows on")
        cycle.flows_on = False
        cycle.start(rest, self._loop, self._tasks)

    def on_leave(self, call: Callable[[], None]) -> None:
        """Call it once when the client leaves, soon where it has already. The request's body was read."""
        self._leave = call
        self._flow.resume_reading()  # which a long body had stopped: a leaving is read
        if self._transport.is_closing():
            self._loop.call_soon(self.lost)

    def forget(self, call: Callable[[], None]) -> None:
        """Nobody needs to know any more."""
        if self._leave == call:
            self._leave = None

    def lost(self) -> None:
        """The connection is gone."""
        self.forget_parser = None  # it leads back to this object
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()
