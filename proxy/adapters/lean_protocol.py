"""uvicorn's HTTP/1.1 protocol at less of a price: what it keeps for each connection and request, and its timer for idle connections.

Its events and queues hold a deque of 600 bytes each, and setting and taking back a timer for each request costs more than parsing it.
The timer is one that connections share, and a connection stays in its place there: when that is due, it looks since when it has been idle.
"""

import asyncio
from functools import lru_cache, partial
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from proxy.adapters.cycle import Cycle
from proxy.adapters.flow import Flag, Flow, Line
from proxy.adapters.turns import Turns
from proxy.adapters.upstream_bounds import Timed, Wheel

_servers: dict[Any, Any] = {}  # the addresses that are listened to, each once
_TARGET_BYTES_REMEMBERED_MAX = 256  # of 256 targets


def _address(transport: asyncio.BaseTransport, end: str) -> tuple[str, int] | None:
    """Host and port of one ``end``, as ASGI has them; None where it has none."""
    told = transport.get_extra_info(end)
    return (str(told[0]), int(told[1])) if isinstance(told, tuple) else None


def _target(url: bytes) -> tuple[str, bytes, bytes]:
    """Path, path as it came, and query of a target."""
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    return unquote(path) if "%" in path else path, parsed.path, parsed.query or b""


_target_remembered = lru_cache(maxsize=256)(_target)  # clients ask for the same few


class LeanHttpProtocol(HttpToolsProtocol):
    """One connection."""

    # Slots, here and below: with more than thirty names in its dictionary an instance would not share their keys with others.
    __slots__ = ("_idle_since_s", "_turns", "_watched")

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.pipeline = Line()  # type: ignore[assignment]
        self._idle_since_s = 0.0
        self._watched: set[Timed] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport's side. uvicorn asks a stand-in for the socket who is there, which uvloop then keeps for each connection."""
        self.connections.add(self)
        self.transport = transport  # type: ignore[assignment]  # uvloop's are not of that class, but alike
        self.flow = Flow(self.transport)
        self._turns = Turns.of(self.loop)
        server = _address(transport, "sockname")
        self.server = _servers.setdefault(server, server)
        self.client = _address(transport, "peername")
        self.scheme = "https" if transport.get_extra_info("sslcontext") else "http"

    def on_headers_complete(self) -> None:
        """The parser's side: begin to serve, as uvicorn does where no root path, no limit of concurrency and no context is set."""
        parser, scope = self.parser, self.scope
        version = parser.get_http_version()
        scope["method"] = parser.get_method().decode("ascii")
        if version != "1.1":
            scope["http_version"] = version
        if parser.should_upgrade() and self._should_upgrade():
            return
        read = _target_remembered if len(self.url) <= _TARGET_BYTES_REMEMBERED_MAX else _target
        scope["path"], scope["raw_path"], scope["query_string"] = read(self.url)
        before = self.cycle
        cycle = self.cycle = Cycle(
            scope, self.transport, self.flow, self.logger, self.access_logger, self.access_log, self.server_state.default_headers,
            cast("Any", Flag()), self.expect_100_continue, version != "1.0" and parser.should_keep_alive(), self.on_response_complete,
        )  # fmt: skip
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:  # it waits behind others
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

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

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._turns.begin(partial(cycle.start, app, self.loop, self.tasks))

    def forget_parser(self) -> None:
        """Between requests it has nothing to remember, and a kilobyte to forget: what comes next finds another. So has the head."""
        cycle = self.cycle
        if cycle is not None and not cycle.more_body and cycle.scope is self.scope:  # else the next head has begun
            self.parser = self.scope = self.headers = None  # type: ignore[assignment]

    def _parse(self, data: bytes) -> None:
        parser: httptools.HttpRequestParser | None = self.parser
        if parser is None:
            parser = self._take_parser()
        parser.feed_data(data)

    def _take_parser(self) -> httptools.HttpRequestParser:
        parser = self.parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        return parser

    def _is_idle(self) -> bool:
        """Whether nothing is asked."""
        return self.cycle is None or self.cycle.response_complete

    def _wait_for_a_request(self) -> None:
        self._idle_since_s = self.loop.time()
        if self._watched is None:
            self._watched = Wheel.of(self.loop).add(self, self._idle_since_s + self.timeout_keep_alive)

    def look(self) -> None:
        """Close a connection that has been idle for so long; one that is busy waits anew when it is not."""
        self._watched = None
        if not self._is_idle():
            return
        due_s = self._idle_since_s + self.timeout_keep_alive
        if due_s > self.loop.time():
            self._watched = Wheel.of(self.loop).add(self, due_s)
        else:
            self.timeout_keep_alive_handler()

    def _unset_keepalive_if_required(self) -> None:
        if self._watched is not None:
            self._watched.discard(self)
            self._watched = None
