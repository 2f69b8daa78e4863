"""What browsers are told with an answer of kvgate's own: the same as by the engine, or a page could not read why it was refused.

Which pages may read answers is configured at the engine (``--allowed-origins``). For a request with an ``Origin`` a replica is asked, by
``GET /version`` with the same one, and the fields it answers with are kept for ``FRESH_S``. Relayed answers carry the engine's own.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from proxy.ports import Headers, UpstreamError
from proxy.serving.services import Services

FRESH_S = 60.0
ANSWER_S_MAX = 1.0  # the client waits for it
ORIGINS_MAX = 1000  # clients choose them
ORIGIN_BYTES_MAX = 512  # a scheme, a name of at most 253 letters, a port
NONE_S = 5.0  # after which a replica that did not answer is asked again


@dataclass(frozen=True, slots=True)
class CrossOrigin:
    """Asks and remembers."""

    services: Services
    _known: dict[bytes, tuple[float, Headers]] = field(default_factory=dict)

    def of(self, headers: Headers) -> Callable[[], Awaitable[Headers]] | None:
        """How to find the fields for a request with these headers; None where it does not come from a page."""
        for name, value in headers:
            if name == b"origin" and len(value) <= ORIGIN_BYTES_MAX:
                return partial(self.fields, value)
        return None

    async def fields(self, origin: bytes) -> Headers:
        """The fields that the engine answers this origin with; none where none can be asked."""
        now_s = self.services.clock.now_s()
        until_s, found = self._known.get(origin, (0.0, []))
        if now_s < until_s:
            return found
        asked = await self._ask(origin)
        if len(self._known) >= ORIGINS_MAX:
            self._known.clear()
        self._known[origin] = now_s + (NONE_S if asked is None else FRESH_S), asked or []
        return asked or []

    async def _ask(self, origin: bytes) -> Headers | None:
        services = self.services
        name = services.outstanding.least()
        if name is None:
            return None
        headers = services.upstream_headers(name, [(b"origin", origin)])
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                response = await services.upstream.open(services.watchers[name].policy.url, b"GET", b"/version", headers, b"")
                try:
                    while await response.read():
                        pass
                finally:
                    response.close()
        except (UpstreamError, TimeoutError):
            return None
        return [one for one in response.headers if one[0] == b"vary" or one[0].startswith(b"access-control-")]
