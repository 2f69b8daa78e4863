"""WebSockets through kvgate: after the upgrade, bytes in both directions, unread.

uvicorn hands a connection over to ``WebSocketTunnel`` at a request that asks for ``Upgrade: websocket``. Whether and where it goes is said
by ``ports.tunnels``; the replica's own answer decides on the upgrade. Frames, pings, close codes, subprotocols and extensions are the two
ends' own business, so nothing of them can differ. What the replica refuses is relayed with the connection closed after it: no byte that the
client sends is forwarded before the replica has answered 101, so nothing can be smuggled in as a second request.

Bounded: each direction stops reading while the other side's write buffer is full; before the 101 the client may send
``EARLY_BYTES_MAX``, and the replica's head may be ``HEAD_BYTES_MAX`` long. The end of either side ends the other, after what was received
has been handed on, within ``FLUSH_S_MAX``. On shutdown both connections are closed; clients see that as an abnormal end (1006).
"""

import asyncio
from typing import Any, cast
from urllib.parse import unquote

import httptools

from proxy.adapters.certificates import trusted
from proxy.adapters.stall_proof import stall_proof_timeout
from proxy.adapters.upstream_connection import watch_peer
from proxy.ports import Headers
from proxy.ports.tunnels import Tunnel, Tunnels
from proxy.wire.answers import Answer
from proxy.wire.http_fields import FieldError, encode_request_head, parse_base_url

EARLY_BYTES_MAX = 64 * 1024
HEAD_BYTES_MAX = 64 * 1024
LENGTH_DIGITS_MAX = 18
HANDSHAKE_S_MAX = 30.0  # an engine that answers nothing for so long is not there
FLUSH_S_MAX = 10.0  # for a peer that does not read what it is still owed
_END = b"\r\n\r\n"
_BAD_GATEWAY = "The replica could not be spoken to"


class _ReplicaSide(asyncio.Protocol):
    """The connection to the replica."""

    def __init__(self, tunnel: "WebSocketTunnel") -> None:
        self._tunnel = tunnel
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        watch_peer(transport)

    def data_received(self, data: bytes) -> None:
        self._tunnel.from_replica(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._tunnel.replica_gone(exc)

    def pause_writing(self) -> None:
        self._tunnel.transport.pause_reading()

    def resume_writing(self) -> None:
        self._tunnel.transport.resume_reading()


class WebSocketTunnel(asyncio.Protocol):
    """The client's connection from its upgrade on; uvicorn makes one with what it knows, of which only the list of connections is used."""

    transport: asyncio.Transport

    def __init__(self, tunnels: Tunnels, *, server_state: Any, **_: Any) -> None:
        self._tunnels = tunnels
        self._connections: set[Any] = server_state.connections
        self._loop = asyncio.get_running_loop()
        self._replica = _ReplicaSide(self)
        self._tunnel: Tunnel | None = None
        self._opening: asyncio.Task[None] | None = None
        self._early: bytearray | None = None  # None: the request's head was not read yet
        self._head: bytearray | None = bytearray()  # of the replica's answer; None: it is out
        self._open = False  # the replica has answered 101
        self._owed: int | None = None  # bytes of a refusal's body that are still to come; None: until the replica closes
        self._handshake_timer: asyncio.TimerHandle | None = None

    # What the client's transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Taken over from uvicorn's HTTP protocol."""
        self.transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        """First the request's head, whole, as uvicorn writes it; then what the client sends."""
        if self._early is None:
            self._early = bytearray()
            self._begin(data)
        elif self._open and self._replica.transport is not None:
            self._replica.transport.write(data)
        elif not self._open:
            self._early += data
            if len(self._early) > EARLY_BYTES_MAX:
                self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, and with it the connection to the replica."""
        del exc
        self._connections.discard(self)
        if self._opening is not None:
            self._opening.cancel()
        self._close(self._replica.transport)
        if self._tunnel is not None:
            self._tunnel.closed()
            self._tunnel = None

    def pause_writing(self) -> None:
        """The client is slower than the replica."""
        if self._replica.transport is not None:
            self._replica.transport.pause_reading()

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._replica.transport is not None:
            self._replica.transport.resume_reading()

    def shutdown(self) -> None:
        """What uvicorn calls when the server ends."""
        self._close(self._replica.transport)
        self._close(self.transport)

    # Opening

    def _begin(self, data: bytes) -> None:
        first, *lines = data.removesuffix(_END).split(b"\r\n")
        method, target, _ = first.split(b" ", 2)
        headers: Headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
        url = httptools.parse_url(target)
        path = unquote((url.path or b"/").decode("latin-1"))
        query = b"?" + url.query if url.query else b""
        answer = self._tunnels.open(method, path, (url.path or b"/") + query, headers)
        if isinstance(answer, Answer):
            self._refuse(answer)
            return
        self._tunnel = answer
        self._opening = self._loop.create_task(self._connect(answer))

    async def _connect(self, tunnel: Tunnel) -> None:
        try:
            origin = parse_base_url(tunnel.base_url)
            # The list of fields of one hop is ours to write: of the client's, only the upgrade is passed on.
            head = encode_request_head(origin, b"GET", tunnel.target, tunnel.headers, 0)
            tls = trusted() if origin.scheme == "https" else None
            async with stall_proof_timeout(tunnel.connect_s_max):
                await self._loop.create_connection(lambda: self._replica, origin.host, origin.port, ssl=tls)
        except (OSError, FieldError, TimeoutError) as error:
            self._refuse(self._tunnels.failed(tunnel, f"{_BAD_GATEWAY}: {error or 'no connection in time'}"))
            return
        if self._replica.transport is not None:
            self._replica.transport.write(head.removesuffix(b"\r\n") + b"connection: Upgrade\r\nupgrade: websocket\r\n\r\n")
            self._handshake_timer = self._loop.call_later(HANDSHAKE_S_MAX, self._late)

    def _late(self) -> None:
        if self._head is not None and self._tunnel is not None:
            self._refuse(self._tunnels.failed(self._tunnel, f"{_BAD_GATEWAY}: no answer within {HANDSHAKE_S_MAX:g} s"))

    def _refuse(self, answer: Answer) -> None:
        """Answer ourselves, and close."""
        self._head = None
        self._close(self._replica.transport)
        self.transport.write(_written(answer.status, [*answer.headers], answer.body))
        self._close(self.transport)

    # What comes from the replica

    def from_replica(self, data: bytes) -> None:
        """The head of its answer, then bytes for the client."""
        if self._head is not None:
            self._head += data
            head, end, rest = bytes(self._head).partition(_END)
            if not end:
                if len(self._head) > HEAD_BYTES_MAX and self._tunnel is not None:
                    self._refuse(self._tunnels.failed(self._tunnel, f"{_BAD_GATEWAY}: its head is above {HEAD_BYTES_MAX} bytes"))
                return
            self._answered(head, rest)
        elif self._open:
            self.transport.write(data)
        elif not self.transport.is_closing():
            self._rest_of_refusal(data)

    def _answered(self, head: bytes, rest: bytes) -> None:
        """The replica's answer has begun: open the tunnel, or relay the refusal."""
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
        self._head = None
        first, *lines = head.split(b"\r\n")
        status = first.split(b" ", 2)[1:2]
        fields = [(name.lower(), value) for name, _, value in (line.partition(b": ") for line in lines)]
        tunnel = self._tunnel
        if tunnel is None or not first.startswith(b"HTTP/1.") or not status or not status[0].isdigit():
            if tunnel is not None:
                self._refuse(self._tunnels.failed(tunnel, f"{_BAD_GATEWAY}: not an HTTP/1.1 response"))
            return
        self._open = status == [b"101"]
        length = dict(fields).get(b"content-length", b"")
        self._owed = int(length) if length.isdigit() and len(length) <= LENGTH_DIGITS_MAX else None
        own = {b"x-request-id", *(() if self._open else (b"connection", b"keep-alive"))}
        kept = [field for field in fields if field[0] not in own] + [(b"x-request-id", tunnel.request_id)]
        if not self._open:
            kept.append((b"connection", b"close"))
        self.transport.write(first + b"\r\n" + b"".join(b"%b: %b\r\n" % field for field in kept) + b"\r\n")
        if not self._open:
            self._rest_of_refusal(rest)
            return
        if rest:
            self.transport.write(rest)
        if self._early and self._replica.transport is not None:
            self._replica.transport.write(bytes(self._early))
            self.transport.resume_reading()
        self._early = bytearray()

    def _rest_of_refusal(self, data: bytes) -> None:
        if self._owed is not None:
            data = data[: self._owed]
            self._owed -= len(data)
        if data:
            self.transport.write(data)
        if self._owed == 0:
            self._close(self._replica.transport)
            self._close(self.transport)

    def replica_gone(self, exc: Exception | None) -> None:
        """Its connection has ended."""
        if self._head is not None and self._tunnel is not None and not self.transport.is_closing():
            self._refuse(self._tunnels.failed(self._tunnel, f"{_BAD_GATEWAY}: connection lost{f': {exc}' if exc else ''}"))
        self._close(self.transport)

    def _close(self, transport: asyncio.Transport | None) -> None:
        """Close once what was written is out, or after ``FLUSH_S_MAX``."""
        if transport is not None and not transport.is_closing():
            transport.close()
            self._loop.call_later(FLUSH_S_MAX, transport.abort)


def _written(status: int, headers: Headers, body: bytes) -> bytes:
    fields = b"".join(b"%b: %b\r\n" % field for field in headers)
    return b"HTTP/1.1 %d \r\n%bconnection: close\r\n\r\n%b" % (status, fields, body)
