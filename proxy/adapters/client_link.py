"""The shorter way to the client that kvgate's own HTTP protocol offers beside ASGI's (``ports.ClientLink``).

ASGI has one message and two coroutines for each piece of a stream, and a task for whoever wants to know that the client left. A piece of
an event stream is passed on in the callback that brought it instead, and the leaving is told by a call.
"""

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class ClientLink:
    """Of one connection. ``cycle`` is the request that is being answered on it."""

    __slots__ = ("_flow", "_leave", "_loop", "_transport", "cycle")

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, flow: FlowControl) -> None:
        self.cycle: RequestResponseCycle | None = None
        self._loop = loop
        self._transport = transport
        self._flow = flow
        self._leave: Callable[[], None] | None = None

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
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()
