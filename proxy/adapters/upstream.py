"""The client side of the relay: HTTP/1.1 to the replicas over a small pool of kept-alive connections per base URL.

A connection is reused last in, first out, so that few stay warm and the rest age; an idle one is closed after ``idle_s_max``, before
the engine's own 5 s, and at once when the engine closes it. A request that meets an engine closing an idle connection at that moment
is sent once more on a fresh connection: no byte of an answer had come. Nothing else is ever sent twice, and what may not be sent twice
(``once``) goes over a fresh connection from the start.

Fails: UpstreamError of kind ``connect`` (no connection within ``connect_s_max``, or none free of ``connections_max``; a stall of our own
process does not count: ``adapters.stall_proof``), ``timeout`` (no head, or a silent stream), ``reset`` (connection lost), ``protocol``
(not HTTP), ``request`` (it cannot be written, which is not the replica's fault).
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from proxy.adapters.stall_proof import stall_proof_timeout
from proxy.adapters.upstream_bounds import Buffered, Patience, Wheel
from proxy.adapters.upstream_connection import Connection
from proxy.adapters.upstream_exchange import Exchange
from proxy.ports import Headers, UpstreamError
from proxy.wire.http_fields import FieldError, Origin, encode_request_head, parse_base_url

ENDLESS = Patience(idle_s_max=600.0)


@dataclass(frozen=True, slots=True)
class UpstreamLimits:
    """Bounds in seconds, connections and bytes; None is unlimited."""

    connections_max: int | None = None  # per base URL
    connect_s_max: float = 5.0
    idle_s_max: float = 4.0  # uvicorn, and so vLLM, closes idle connections after 5 s
    patience: Patience = ENDLESS  # an engine that does not stream answers a whole generation at once
    buffer_bytes_max: int | None = None  # over all replicas


class _OriginPool:
    """Connections to one origin."""

    def __init__(
        self, origin: Origin, limits: UpstreamLimits, tls: ssl.SSLContext | None, buffered: Buffered,
        on_end: Callable[["_OriginPool"], None],
    ) -> None:  # fmt: skip
        self._origin = origin
        self.limits = limits
        self._buffered = buffered
        self._tls = tls
        self._on_end = on_end  # told when the last connection of one that takes no more is closed
        self._loop = asyncio.get_running_loop()
        self._wheel = Wheel.of(self._loop)
        self._connections: set[Connection] = set()
        self._connecting = 0
        self._idle: deque[Connection] = deque()  # the longest idle first
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self.closed = self.retired = False
        self.all_closed = asyncio.Event()

    @property
    def open_count(self) -> int:
        """Connections open or being opened."""
        return len(self._connections) + self._connecting

    @property
    def idle_count(self) -> int:
        """Connections that wait for a request."""
        return sum(connection.usable for connection in self._idle)

    async def open(self, method: bytes, target: bytes, headers: Headers, body: bytes, *, once: bool) -> Exchange:
        """Send a request and wait for its response head. Raises UpstreamError."""
        try:
            head = encode_request_head(self._origin, method, target, headers, len(body))
        except FieldError as exc:
            raise UpstreamError("request", f"it cannot be sent: {exc}") from exc
        connection = (None if once else self._take_idle()) or await self._connect(fresh=once)
        try:
            return await self._exchange(connection, method, head, body)
        except UpstreamError as exc:
            if not exc.reused:
                raise
        return await self._exchange(await self._connect(), method, head, body)

    async def _exchange(self, connection: Connection, method: bytes, head: bytes, body: bytes) -> Exchange:
        exchange = Exchange(
            connection, head_only=method == b"HEAD", on_finished=self._take_back, buffered=self._buffered, wheel=self._wheel
        )
        try:
            await exchange.request(head, body, self.limits.patience)
        except BaseException:  # a cancelled wait too must close the connection, so that the engine stops
            exchange.close()
            raise
        return exchange

    def _take_idle(self) -> Connection | None:
        oldest_s = self._loop.time() - self.limits.idle_s_max
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since_s > oldest_s:
                return connection
            connection.abort()
        return None

    def _take_back(self, connection: Connection) -> None:
        if self.closed or self.retired:
            connection.abort()
            return
        connection.idle_since_s = self._loop.time()
        self._idle.append(connection)
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(self.limits.idle_s_max, self._sweep)
        self._wake_one()

    def _sweep(self) -> None:
        self._sweep_timer = None
        oldest_s = self._loop.time() - self.limits.idle_s_max
        idle = self._idle
        while idle and (not idle[0].usable or idle[0].idle_since_s <= oldest_s):
            idle.popleft().abort()
        if idle:
            self._sweep_timer = self._loop.call_at(idle[0].idle_since_s + self.limits.idle_s_max, self._sweep)

    async def _connect(self, *, fresh: bool = False) -> Connection:
        """A fresh connection, or unless ``fresh`` one that came back while this request waited for a place below ``connections_max``."""
        origin, limits = self._origin, self.limits
        try:
            async with stall_proof_timeout(limits.connect_s_max):
                while limits.connections_max is not None and self.open_count >= limits.connections_max:
                    await self._wait_for_place()
                    if self.closed:
                        raise UpstreamError("connect", f"{origin.host}:{origin.port}: the upstream client is closed")
                    idle = self._take_idle()
                    if idle is not None and not fresh:
                        return idle
                    if idle is not None:
                        idle.abort()  # its place is what is wanted
                return await self._connect_now()
        except TimeoutError:
            full = limits.connections_max is not None and self.open_count >= limits.connections_max
            why = f"all connections_max={limits.connections_max} in use" if full else "no connection"
            raise UpstreamError("connect", f"{origin.host}:{origin.port}: {why} for {limits.connect_s_max:g} s") from None
        except (OSError, UnicodeError) as exc:  # UnicodeError: a host name that DNS cannot hold
            raise UpstreamError("connect", f"{origin.host}:{origin.port}: {exc}") from exc

    async def _connect_now(self) -> Connection:
        connection = Connection(self._closed)
        self._connecting += 1
        try:
            await self._loop.create_connection(lambda: connection, self._origin.host, self._origin.port, ssl=self._tls)
        except BaseException:
            connection.abort()
            self._wake_one()
            raise
        finally:
            self._connecting -= 1
        if self.closed or not connection.usable:
            connection.abort()
            raise UpstreamError("connect", f"{self._origin.host}:{self._origin.port}: closed as soon as it was open")
        self._connections.add(connection)
        return connection

    async def _wait_for_place(self) -> None:
        place: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._wake_one()  # the place was ours already: pass it on
            raise
        finally:
            if not place.done():
                place.cancel()

    def _wake_one(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if (self.closed or self.retired) and not self._connections:
            self.all_closed.set()
            self._on_end(self)
        self._wake_one()

    def retire(self) -> None:
        """Close idle connections now, the others as their exchanges end."""
        self.retired = True
        while self._idle:
            self._idle.pop().abort()
        if not self._connections:
            self._on_end(self)

    def close(self) -> None:
        """Close every connection; what is still being exchanged fails."""
        self.closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        if not self._connections:
            self.all_closed.set()
        for connection in list(self._connections):
            connection.abort()
        while self._waiting:
            self._wake_one()


class HttpUpstream:
    """Implements ``ports.Upstream``. ``tls`` maps a base URL to the context its https connections use; others get the default one.

    ``repr`` shows, per origin, how many connections are open and how many of them idle.
    """

    def __init__(self, limits: UpstreamLimits | None = None, *, tls: Mapping[str, ssl.SSLContext] = MappingProxyType({})) -> None:
        self._limits = limits or UpstreamLimits()
        self._tls = tls
        self._tls_default: ssl.SSLContext | None = None
        self._buffered = Buffered(self._limits.buffer_bytes_max)
        self._pools: dict[str, _OriginPool] = {}
        self._retired: set[_OriginPool] = set()
        self._closed = False

    def __repr__(self) -> str:
        pools = ", ".join(f"{url} open={pool.open_count} idle={pool.idle_count}" for url, pool in sorted(self._pools.items()))
        return f"<HttpUpstream {pools or 'no origins'}>"

    async def open(
        self, base_url: str, method: bytes, target: bytes, headers: Headers, body: bytes, *, once: bool = False
    ) -> Exchange:
        """Send a request and wait for the response head. Raises UpstreamError. Cancelling it closes the connection."""
        pool = self._pools.get(base_url) or self._add_pool(base_url)
        return await pool.open(method, target, headers, body, once=once)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of answers that lie here because their clients read slowly."""
        return self._buffered.held_bytes

    def bound(self, limits: UpstreamLimits) -> None:
        """Other limits from now on; an exchange under way keeps those it began with."""
        self._limits, self._buffered.bytes_max = limits, limits.buffer_bytes_max
        for pool in [*self._pools.values(), *self._retired]:
            pool.limits = limits

    def forget(self, base_url: str) -> None:
        """Drop a replica that is gone for good: connections are closed as they fall idle, and a later ``open`` starts anew."""
        pool = self._pools.pop(base_url, None)
        if pool is not None:
            self._retired.add(pool)
            pool.retire()

    async def aclose(self) -> None:
        """Close every connection; unfinished responses fail, and ``open`` is refused from now on."""
        self._closed = True
        pools = [*self._pools.values(), *self._retired]
        for pool in pools:
            pool.close()
        for pool in pools:
            await pool.all_closed.wait()

    def _add_pool(self, base_url: str) -> _OriginPool:
        if self._closed:
            raise UpstreamError("connect", "the upstream client is closed")
        try:
            origin = parse_base_url(base_url)
        except FieldError as exc:
            raise UpstreamError("connect", str(exc)) from exc
        tls, ended = self._tls_for(base_url, origin), self._retired.discard
        pool = self._pools[base_url] = _OriginPool(origin, self._limits, tls, self._buffered, ended)
        return pool

    def _tls_for(self, base_url: str, origin: Origin) -> ssl.SSLContext | None:
        if origin.scheme != "https":
            return None
        chosen = self._tls.get(base_url)
        if chosen is None:
            chosen = self._tls_default = self._tls_default or ssl.create_default_context()
        return chosen
