"""Clients of several proxies: tenants and priorities, more requests than fit, and what became of each.

A *stream of clients* (``Clients``) is that many closed loops of one tenant and priority; each sends to one of its proxies, drawn anew for
every request among those that a balancer would use. Lengths are the mock's own, lognormal, under a ``max_tokens`` that says nothing.
A quarter of the requests stream.

What counts as failed: see ``tests.bench.load``; here a failure is *excused* where its proxy was killed while the request was open.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from proxy.adapters.upstream import HttpUpstream
from tests.bench.load import Fate, LoadRequest, Record, new_upstream, send
from tests.bench.loads import as_request, chat, distinct_words
from tests.bench.shared_processes import Proxy

MAX_TOKENS = 3000
PROMPT_WORDS_MIN, PROMPT_WORDS_MAX = 20, 120
STREAMING_SHARE = 0.25
PAUSE_S = 2.0  # after a refusal or a failure: whoever came back at once would only make the proxies busy
NOBODY_S = 0.05  # between two looks for a proxy that is up


@dataclass(frozen=True, slots=True)
class Clients:
    """``count`` clients of a tenant that know the ``proxies`` of those indices."""

    tenant: str
    count: int
    proxies: tuple[int, ...]
    high: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """One request that ended."""

    record: Record
    tenant: str
    high: bool
    proxy: int
    excused: bool  # its proxy was killed while it was open

    @property
    def failed(self) -> bool:
        """Neither answered nor refused in a documented way, and nobody killed its proxy."""
        return self.record.fate is Fate.FAILED and not self.excused

    @property
    def token_steps(self) -> float:
        """KV token-time it took: P L + L (L + 1) / 2, by the engine's own counts."""
        length = self.record.tokens
        return self.record.prompt_tokens * length + length * (length + 1) / 2


def new_request(
    rng: random.Random, tenant: str, *, high: bool, max_tokens: int = MAX_TOKENS, streaming_share: float = STREAMING_SHARE
) -> LoadRequest:
    """One chat request whose prompt is like no other."""
    words = distinct_words(rng, rng.randint(PROMPT_WORDS_MIN, PROMPT_WORDS_MAX))
    plain = as_request(*chat("mock", words, stream=rng.random() < streaming_share, max_tokens=max_tokens))
    headers = ((b"x-kvgate-tenant", tenant.encode()), *(((b"x-class", b"high"),) if high else ()))
    return LoadRequest(plain.target, plain.body, plain.stream, headers=headers)


@dataclass(slots=True)
class SharedLoad:
    """Runs clients until told to stop, and keeps what they met."""

    proxies: Sequence[Proxy]
    seed: int = 1
    max_tokens: int = MAX_TOKENS
    sent: list[Sent] = field(default_factory=list)
    open: int = 0
    _over: bool = False
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _upstream: HttpUpstream = field(default_factory=new_upstream)

    def start(self, clients: Sequence[Clients]) -> None:
        """Let them begin, over a second."""
        for kind in clients:
            for number in range(kind.count):
                rng = random.Random(f"{self.seed} {kind.tenant} {kind.high} {number}")
                self._tasks.append(asyncio.create_task(self._client(kind, rng)))

    async def finish(self) -> None:
        """Take no new requests and wait for those that are open. Raises what a client met that is no answer."""
        self._over = True
        await asyncio.gather(*self._tasks)
        self._tasks.clear()
        await self._upstream.aclose()

    async def drop(self) -> None:
        """Cancel everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._upstream.aclose()

    async def _client(self, kind: Clients, rng: random.Random) -> None:
        await asyncio.sleep(rng.random())
        while not self._over:
            known = [self.proxies[index] for index in kind.proxies if self.proxies[index].up]
            if not known:
                await asyncio.sleep(NOBODY_S)
                continue
            record = await self.request(rng.choice(known), self._new_request(rng, kind), kind)
            if record.fate is not Fate.COMPLETED and not self._over:
                await asyncio.sleep(PAUSE_S)

    def _new_request(self, rng: random.Random, kind: Clients) -> LoadRequest:
        return new_request(rng, kind.tenant, high=kind.high, max_tokens=self.max_tokens)

    async def request(self, proxy: Proxy, request: LoadRequest, kind: Clients) -> Record:
        """Send one and keep what became of it."""
        kills = len(proxy.killed_s)
        self.open += 1
        try:
            record = await send(self._upstream, proxy.url, request)
        finally:
            self.open -= 1
        self.sent.append(Sent(record, kind.tenant, kind.high, proxy.index, len(proxy.killed_s) > kills))
        return record


def jain(values: Sequence[float]) -> float:
    """Jain's index: 1 when all have the same, 1/n when one has all."""
    square = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * square) if square else 0.0


def failures(sent: Sequence[Sent]) -> dict[str, int]:
    """Count what failed without excuse, by what was said."""
    found: dict[str, int] = {}
    for one in sent:
        if one.failed:
            text = f"proxy{one.proxy}: {one.record.status} {one.record.outcome} {one.record.error}"[:160]
            found[text] = found.get(text, 0) + 1
    return found
