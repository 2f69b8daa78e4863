"""GET requests to one replica, bounded in time and size, for probes and scrapes."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from proxy import __version__
from proxy.adapters.certificates import trusted
from proxy.adapters.let_go import let_go
from proxy.adapters.stall_proof import stall_proof_timeout
from proxy.adapters.upstream import HttpUpstream, UpstreamLimits
from proxy.ports import Clock, UpstreamError
from proxy.ports.replicas import ReplicaUnreachableError

TYPE_CHARS_MAX = 100
BODY_BYTES_MAX = 8_000_000  # a 0.32 exposition is 50 KB and 30 KB more per further engine
# Unpacked it may be a thousand times as long.
COMPRESSED = "{}: the answer is compressed, though that was not asked for. Check what stands before vLLM."
TOO_LONG = "{}: the answer exceeds {:,} bytes and was dropped. Check that the URL is a vLLM server's."
ACCEPT = {"accept": "text/plain, application/json;q=0.9, */*;q=0.1", "accept-encoding": "identity"}
USER_AGENT = f"kvgate/{__version__}"  # so that a replica's access log tells our own questions from those of clients
KEPT_S = 3.0  # uvicorn closes idle connections after 5 s: ours must give up earlier
CONNECT_RATIO = 0.9
CLOSING = {"connection": "close"}


class _AgainError(Exception):
    """A kept connection failed, which says nothing about the replica."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. ``first_byte_s`` is the injected clock when its head came."""

    url: str
    status: int
    content_type: str
    body: bytes
    first_byte_s: float

    def told(self) -> str:
        """What was got, for an error message."""
        start = self.body[:80].decode("utf-8", "replace").strip()
        return f"{self.url} answered {self.status} {self.content_type or 'without content type'}: {start!r}"

    def json(self) -> Any:
        """The body parsed, or None when the status is not 200 or it is not JSON."""
        if self.status != 200:
            return None
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class _ConnectTrace:
    """Told by httpx what it does: whether the server has taken the connection, so that only its answer can be late."""

    def __init__(self) -> None:
        self.connecting = False

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        """One event."""
        del info
        if event.startswith("connection.connect_tcp."):
            self.connecting = not event.endswith(".complete")


class ControlHttp:
    """GET requests to one replica, bounded in time and size. A path prefix in ``base_url`` is kept."""

    def __init__(
        self,
        base_url: str,
        clock: Clock,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.has_key = any(name.lower() == "authorization" for name in headers)
        self.timeout_s = timeout_s
        self._clock = clock
        # Compression would cost the engine's API server more than the network gives back.
        sent = {"user-agent": USER_AGENT} | dict(headers) | ACCEPT
        self._sent, self._transport = sent, transport
        self._under_way = 0
        self._cancelled = False  # a request, since the client was made
        # What is asked twice a second goes by the relay's own client: httpx takes two milliseconds of CPU for each answer.
        self._upstream: HttpUpstream | None = None
        self._fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in sent.items()]
        if transport is None:
            self._upstream = HttpUpstream(self._limits(), tls={self.base_url: trusted()})
        self._client = self._new_client()

    def _new_client(self) -> httpx.AsyncClient:
        # No bound on connections: httpx forgets some that a time-out cancelled (``_begin_anew``), and a bound reached by those would make a
        # replica that had been slow unreachable for ever.
        return httpx.AsyncClient(
            headers=self._sent,
            timeout=httpx.Timeout(None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            transport=self._transport,
            verify=trusted(),
            trust_env=False,
        )  # fmt: skip  ``get`` bounds the whole

    async def _begin_anew(self) -> None:
        """Close what was cancelled: httpx keeps some of those connections for as long as its client lives, a descriptor each."""
        before, self._client = self._client, self._new_client()
        self._cancelled = False
        await before.aclose()

    def _limits(self) -> UpstreamLimits:
        # Where a connection comes at all it comes before the whole is given up, so that what is given up then is late.
        return UpstreamLimits(connect_s_max=CONNECT_RATIO * self.timeout_s, idle_s_max=KEPT_S)

    def bound(self, timeout_s: float) -> None:
        """Wait no longer than this for an answer from now on."""
        self.timeout_s = timeout_s
        if self._upstream is not None:
            self._upstream.bound(self._limits())

    async def get(self, path: str, *, fresh: bool = False) -> Answer:
        """The answer to ``path``, over a connection of its own when ``fresh``. Raises ReplicaUnreachableError."""
        url = self.base_url + path
        shown = url.partition("?")[0]
        if not url.startswith(("http://", "https://")):
            raise ReplicaUnreachableError(
                f"{shown}: a replica's URL must begin with http:// or https://; correct it in the policy."
            )
        trace = _ConnectTrace()
        if self._cancelled and not self._under_way:
            await self._begin_anew()
        self._under_way += 1
        try:
            async with stall_proof_timeout(self.timeout_s):
                if not fresh and self._upstream is not None:
                    with contextlib.suppress(_AgainError):
                        return await self._read_kept(self._upstream, path, shown)
                return await self._ask(url, trace, closing=fresh or self._upstream is not None)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise ReplicaUnreachableError(
                f"{shown}: no complete answer within {self.timeout_s:g} s. The server may be starting, overloaded or cut off:"
                " check its log and the network between.",
                late=not trace.connecting,
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ReplicaUnreachableError(
                f"{shown}: {type(error).__name__}: {error or 'no detail'}. Check that vLLM is running there and that scheme, host and"
                " port are right."
            ) from error
        finally:
            self._under_way -= 1

    async def _ask(self, url: str, trace: _ConnectTrace, *, closing: bool) -> Answer:
        """By httpx, over a connection of its own, and say so when ``closing``."""
        # A balancer's session cookie would make every connection reach the same engine.
        self._client.cookies.clear()
        try:
            return await self._read(url, trace, CLOSING if closing else {})
        except asyncio.CancelledError:
            self._cancelled = True
            raise

    async def _read_kept(self, upstream: HttpUpstream, path: str, shown: str) -> Answer:
        """Over a connection that is kept. Raises _AgainError where another one may bring more."""
        try:
            response = await upstream.open(self.base_url, b"GET", path.encode(), self._fields, b"")
        except UpstreamError as error:
            if error.kind != "connect":
                raise _AgainError from error
            raise ReplicaUnreachableError(
                f"{shown}: {error}. Check that vLLM is running there and that scheme, host and port are right."
            ) from error
        try:
            first_byte_s, fields = self._clock.now_s(), dict(response.headers)
            if fields.get(b"content-encoding", b"identity") != b"identity":
                raise ReplicaUnreachableError(COMPRESSED.format(shown))
            body = bytearray()
            while data := await response.read():
                body += data
                if len(body) > BODY_BYTES_MAX:
                    raise ReplicaUnreachableError(TOO_LONG.format(shown, BODY_BYTES_MAX))
        except UpstreamError as error:
            raise _AgainError from error
        finally:
            response.close()
        kind = fields.get(b"content-type", b"")[:TYPE_CHARS_MAX].decode("latin-1")
        return Answer(shown, response.status, kind, bytes(body), first_byte_s)

    async def _read(self, url: str, trace: _ConnectTrace, headers: Mapping[str, str]) -> Answer:
        async with let_go(self._client.stream("GET", url, headers=headers, extensions={"trace": trace})) as response:
            first_byte_s = self._clock.now_s()
            body = bytearray()
            if response.headers.get("content-encoding", "identity") != "identity":  # unpacked it may be a thousand times as long
                raise ReplicaUnreachableError(COMPRESSED.format(url.partition("?")[0]))
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    raise ReplicaUnreachableError(TOO_LONG.format(url.partition("?")[0], BODY_BYTES_MAX))
            kind = response.headers.get("content-type", "")[:TYPE_CHARS_MAX]  # it is shown
            return Answer(url.partition("?")[0], response.status_code, kind, bytes(body), first_byte_s)

    async def aclose(self) -> None:
        """Close every connection."""
        if self._upstream is not None:
            await self._upstream.aclose()
        await self._client.aclose()
