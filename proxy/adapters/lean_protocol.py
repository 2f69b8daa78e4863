"""uvicorn's HTTP/1.1 protocol at less of a price: what it keeps for each connection and request, and its timer for idle connections.

Its events and queues hold a deque of 600 bytes each, and setting and taking back a timer for each request costs more than parsing it.
The timer stays where it is: when it ends, it looks since when the connection has been idle.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from proxy.adapters.flow import Flag, Flow, Line


class LeanHttpProtocol(HttpToolsProtocol):
    """One connection."""

    # Slots, here and below: with more than thirty names in its dictionary an instance would not share their keys with others.
    __slots__ = ("_idle_since_s",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.pipeline = Line()  # type: ignore[assignment]
        self._idle_since_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport's side."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self.flow = Flow(self.transport)

    def on_headers_complete(self) -> None:
        """The parser's side: begin to serve."""
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self.cycle.message_event = Flag()  # type: ignore[assignment]  # nobody has waited for the other yet, nor set it

    def on_response_complete(self) -> None:
        """An answer is whole: begin with the next request, or wait for one."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._wait_for_a_request()

    def _is_idle(self) -> bool:
        """Whether nothing is asked."""
        return self.cycle is None or self.cycle.response_complete

    def _wait_for_a_request(self) -> None:
        self._idle_since_s = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that has been idle for so long; one that is busy waits anew when it is not."""
        self.timeout_keep_alive_task = None
        if not self._is_idle():
            return
        due_s = self._idle_since_s + self.timeout_keep_alive
        if due_s > self.loop.time():
            self.timeout_keep_alive_task = self.loop.call_at(due_s, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()
