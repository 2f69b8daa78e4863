"""uvicorn's HTTP/1.1 protocol with what a port needs that anybody can reach.

uvicorn reads a head or a body of any size for any time, and hands on what a careful server refuses. Here:

- **Head.** At most ``head_bytes_max``, with the read it began in on top, within ``head_s_max`` of its first byte.
- **Body.** ``body_s_max``, and a second more for every ``BODY_BYTES_PER_S_MIN`` that came: who sends at a usable pace is never cut off.
  What surrounds a chunked body (sizes, extensions, trailers) is bounded by it as well.
- **Framing** (RFC 9112). What llhttp refuses in its strict mode; a coding other than chunked; HTTP/1.1 without exactly one ``Host``; a
  target that is no path; a version other than 1.0 and 1.1. Trailers are dropped: uvicorn takes them for header fields, and a front
  proxy that cleans those does not see them. So are fields that ``Connection`` names, before anybody reads or adds any.
- **Upgrade.** An offer of a protocol not spoken here (Java's client offers h2c with its first request) is ignored, as RFC 9110 §7.8 has
  it; the parser takes it for the end of HTTP, so body and further requests are fed to it again.
- **Order.** A fault behind a request that is still being answered ends the connection after that answer, not in the middle of it.
- **Leave.** From SIGTERM on each answer closes its connection: a balancer that only counts connections would keep sending requests over
  those it has, long after this process left its list.

A request that arrives in one read, which is nearly every one, sets no timer.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import httptools

from proxy.adapters.client_link import ClientLink
from proxy.adapters.cycle import Cycle
from proxy.adapters.lean_protocol import LeanHttpProtocol
from proxy.ports import CLIENT_LINK
from proxy.wire.connection_faults import ConnectionFault, fault_response
from proxy.wire.http_fields import end_to_end

BODY_BYTES_PER_S_MIN = 1024  # a tenth of the slowest mobile line; a body that dribbles at less is not on its way
FRAMING_BYTES_PER_BODY_BYTE = 8  # chunks of a single byte take five
LINGER_S = 2.0  # some round trips: who was told why has read it by then
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


@dataclass(frozen=True, slots=True)
class ConnectionRules:
    """How large and slow a request may come (the policy's ``limits`` say why), who is told of one that is given up, and when it ends."""

    head_bytes_max: int
    head_s_max: float
    body_s_max: float
    on_fault: Callable[[ConnectionFault], None]
    ending: Callable[[], bool]  # whether this process takes its leave


class _Phase(Enum):
    BETWEEN = auto()  # requests, or before the first
    HEAD = auto()
    BODY = auto()


_BETWEEN, _HEAD, _BODY = _Phase.BETWEEN, _Phase.HEAD, _Phase.BODY


class _FaultError(Exception):
    """Ends the parser's run from inside a callback; what is wrong is noted."""


class BoundedHttpProtocol(LeanHttpProtocol):
    """One connection."""

    __slots__ = (
        "_answering", "_body_bytes", "_body_since_s", "_deaf", "_fault", "_first_bytes", "_framing_bytes", "_head_bytes", "_link",
        "_message", "_phase", "_read_bytes", "_rules", "_silent", "_timer", "_timer_for",
    )  # fmt: skip

    def __init__(self, rules: Callable[[], ConnectionRules], **options: Any) -> None:
        """``rules`` tells those in force, which hold for the connection from its first byte to its last."""
        super().__init__(**options)
        self._rules = rules()
        self._phase = _BETWEEN
        self._message = 0
        self._deaf = False  # what still comes is not looked at
        self._silent = False  # what the parser is fed was heard before
        self._fault = ConnectionFault.MALFORMED
        self._head_bytes = 0  # of reads that lay within the head
        self._body_bytes = 0
        self._first_bytes = 0  # of the read in which the head or body began
        self._read_bytes = 0  # of this read and those before it that may be the head's: no head can be larger
        self._framing_bytes = 0  # of reads that lay within the body
        self._answering: Cycle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_for = (0, _BETWEEN)
        self._body_since_s = 0.0

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection that says nothing is an idle one from the start."""
        super().connection_made(transport)
        self._link = ClientLink(self.loop, self.transport, self.flow, self.tasks)
        self._link.forget_parser = self.forget_parser
        self._wait_for_a_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Timers end with it."""
        self._stop_timer()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self._link.lost()

    def data_received(self, data: bytes) -> None:
        """Parse, and see what the request now waits for."""
        if self._deaf:
            return
        self._read_bytes = self._first_bytes + self._head_bytes + len(data)
        before, body_bytes = (self._message, self._phase), self._body_bytes
        rest = data
        while True:
            try:
                self._parse(rest)
                break
            except httptools.HttpParserUpgrade as upgrade:
                if self._should_upgrade():
                    self._stop_timer()
                    self._unset_keepalive_if_required()
                    self.handle_websocket_upgrade()
                    return
                rest = rest[upgrade.args[0] :]
                self._ignore_upgrade()
            except httptools.HttpParserError:
                self._give_up(self._fault)
                return
        if before != (self._message, self._phase):
            self._first_bytes = len(data)
        elif self._phase is _BETWEEN or not self._room_for(len(data), len(data) - (self._body_bytes - body_bytes)):
            return  # line ends alone leave a connection as idle as it was
        self._watch()

    # What the parser calls

    def on_message_begin(self) -> None:
        """A head begins."""
        if self._silent:
            return
        self._phase = _HEAD
        self._message += 1
        self._head_bytes = self._body_bytes = self._framing_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        if not self._silent:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field, or a trailer after the body, which is dropped."""
        if self._phase is _HEAD:  # what follows is uvicorn's own, without the price of a call for each field
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole: refuse it or begin to serve."""
        if self._silent:
            return
        names = [name for name, _ in self.headers]
        fault = self._fault_of_head(names)
        if fault is not None:
            self._fault = fault
            raise _FaultError
        if b"connection" in names:
            self.headers[:] = end_to_end(self.headers)
        self.scope["extensions"] = {CLIENT_LINK: self._link}  # type: ignore[dict-item]
        super().on_headers_complete()
        self._phase = _BODY

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole, unless the parser only thinks so because it saw an offer to leave HTTP."""
        if not self._silent and self.parser.should_upgrade() and self._announced() and not self._should_upgrade():
            return
        self._phase = _BETWEEN
        super().on_message_complete()

    def _room_for(self, read_bytes: int, framing_bytes: int) -> bool:
        """Count a read that lay wholly within a head or a body; False where that is too much."""
        bytes_max = self._rules.head_bytes_max
        if self._phase is _HEAD:
            self._head_bytes += read_bytes
            if self._head_bytes > bytes_max:
                self._give_up(ConnectionFault.HEAD_TOO_LARGE)
        elif self._phase is _BODY:
            self._framing_bytes += framing_bytes
            if self._framing_bytes > bytes_max + FRAMING_BYTES_PER_BODY_BYTE * self._body_bytes:
                self._give_up(ConnectionFault.MALFORMED)
        return not self._deaf

    def _fault_of_head(self, names: list[bytes]) -> ConnectionFault | None:
        if self._read_bytes > self._rules.head_bytes_max:  # else no head that came in it can be too large
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self._rules.head_bytes_max:
                return ConnectionFault.HEAD_TOO_LARGE
        hosts = names.count(b"host")
        version = self.parser.get_http_version()
        named = self.url.startswith((b"/", b"http://", b"https://"))
        if not named or version not in {"1.1", "1.0"} or (hosts != 1 and (hosts or version == "1.1")):
            return ConnectionFault.MALFORMED
        if b"transfer-encoding" not in names:
            return None
        coding = next(value for name, value in self.headers if name == b"transfer-encoding")  # the parser refuses a second
        return None if coding.strip().lower() == b"chunked" else ConnectionFault.TRANSFER_CODING

    def _announced(self) -> list[tuple[bytes, bytes]]:
        """The fields that announce a body."""
        return [field for field in self.headers if field[0] in _FRAMING and field[1] != b"0"]

    def _ignore_upgrade(self) -> None:
        """Go on as if nothing had been offered: where a body follows, with a parser that knows of it and of nothing else."""
        announced = self._announced() if self._phase is _BODY else []
        if not announced:
            return
        self._take_parser()
        self._silent = True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(b"%b: %b\r\n" % field for field in announced) + b"\r\n")
        self._silent = False

    # What is answered

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answering = self._link.cycle = cycle
        if self._rules.ending():
            cycle.keep_alive = False
        super()._start_asgi_task(cycle, app)

    def _give_up(self, fault: ConnectionFault) -> None:
        """Take nothing more from this connection, and close it where no answer is cut off by that."""
        self._deaf = True
        self._stop_timer()
        self._rules.on_fault(fault)
        answering, newest = self._answering, self.cycle
        half = self._phase is _BODY and newest is not None and newest.more_body  # of the newest request
        if answering is None or answering.response_complete:
            self._close(None if half else fault)  # of an answered request whose body still comes nobody waits for a word
        elif half and newest is answering:
            self._close(None if answering.response_started else fault)
        else:
            if half:
                self.pipeline.popleft()  # the newest: it waits behind others and will never be whole
            last = self.pipeline[0][0] if self.pipeline else answering
            last.keep_alive = False

    def _close(self, fault: ConnectionFault | None) -> None:
        """Say why, and close in two steps: closed at once, with bytes unread, the kernel's reset would overtake the word."""
        if self.transport.is_closing():
            return
        if fault is None or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write(fault_response(fault))
        self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_S, self.transport.close)

    # Time

    def _is_idle(self) -> bool:
        return self._phase is _BETWEEN and super()._is_idle()

    def _watch(self) -> None:
        """One timer at the most, for what is awaited."""
        if self._phase is _BETWEEN:
            self._stop_timer()
            if self._is_idle():
                self._wait_for_a_request()
            return
        awaited = (self._message, self._phase)
        if self._timer is not None and self._timer_for == awaited:
            return
        self._stop_timer()
        self._timer_for = awaited
        if self._phase is _HEAD:
            self._timer = self.loop.call_later(self._rules.head_s_max, self._give_up, ConnectionFault.HEAD_TIMEOUT)
        else:
            self._body_since_s = self.loop.time()
            self._timer = self.loop.call_later(self._rules.body_s_max, self._check_body)

    def _check_body(self) -> None:
        if self.cycle is not self._answering:  # it waits behind another request, and nothing is read meanwhile
            self._body_since_s = self.loop.time()
        due_s = self._body_since_s + self._rules.body_s_max + self._body_bytes / BODY_BYTES_PER_S_MIN
        if due_s <= self.loop.time():
            self._give_up(ConnectionFault.BODY_TIMEOUT)
        else:
            self._timer = self.loop.call_at(due_s, self._check_body)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
