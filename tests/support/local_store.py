"""A shared store in this process: ``core.shared_ledger`` behind the port, on a clock of the test's, with faults as it likes them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from proxy.core.exchange import Completion, TenantKey
from proxy.core.grid import FloatArray
from proxy.core.override import Override
from proxy.core.shared import Head, Record, ReserveAsk, ReserveReply, RewriteAsk, RewriteReply
from proxy.core.shared_ledger import SharedLedger
from proxy.ports import Clock
from proxy.ports.store import Beat, BeatReply, KeptResponse, ProxyCard, StoreError, StoreFault

AHEAD_S = 1000.0  # of the store's clock before the proxies'
PERIOD_S = 600.0


class LocalStore:
    """One pool. ``fault`` is what every call meets; ``unheard``: a call is carried out all the same, as one that times out may be."""

    shown = "local"

    def __init__(self, clock: Clock, lease_s: float) -> None:
        self.ledger = SharedLedger(lease_s)
        self.clock = clock
        self.fault: StoreFault | None = None
        self.unheard = False
        self.calls: list[str] = []
        self.cards: dict[str, ProxyCard] = {}
        self.accounts: dict[TenantKey, float] = {}
        self.completions: list[tuple[str, Completion]] = []
        self.responses: list[tuple[str, KeptResponse]] = []
        self.overrides: dict[str, Override] = {}

    @property
    def now_s(self) -> float:
        """The store's clock."""
        return self.clock.now_s() + AHEAD_S

    def _asked(self, call: str) -> None:
        self.calls.append(call)
        if self.fault is not None and not self.unheard:
            raise StoreError(self.fault, "as the test says")

    def _answered(self) -> None:
        if self.fault is not None:
            raise StoreError(self.fault, "as the test says")

    async def register(self, proxy: str) -> int:
        self._asked("register")
        epoch = self.ledger.register(proxy, self.now_s)
        self._answered()
        return epoch

    async def time_s(self) -> float:
        self._asked("time")
        return self.now_s

    async def reserve(self, ask: ReserveAsk) -> ReserveReply:
        self._asked("reserve")
        reply = self.ledger.reserve(ask, self.now_s)
        self._answered()
        return reply

    async def rewrite_all(self, asks: Sequence[RewriteAsk]) -> list[RewriteReply]:
        self._asked("rewrite")
        replies = [self.ledger.rewrite(ask, self.now_s) for ask in asks]
        self._answered()
        return replies

    async def publish(self, record: Record, ends: FloatArray, scrape_lease_s: float) -> bool:
        self._asked("publish")
        return self.ledger.publish(record, ends, scrape_lease_s, self.now_s)

    async def set_heads(self, proxy: str, replica: str, heads: Sequence[Head]) -> None:
        self._asked("set_heads")
        self.ledger.set_heads(proxy, replica, list(heads), self.now_s)

    async def forget(self, proxy: str, replicas: Sequence[str]) -> None:
        self._asked("forget")
        assert replicas
        self.ledger.forget(proxy)
        self.cards.pop(proxy, None)

    async def drop(self, proxy: str, replicas: Sequence[str]) -> None:
        self._asked("drop")
        for replica in replicas:
            self.ledger.drop(proxy, replica)

    async def exchange(self, beat: Beat) -> BeatReply:
        self._asked("exchange")
        self.cards[beat.card.proxy] = beat.card
        for key, charge in beat.charges.items():
            self.accounts[key] = self.accounts.get(key, 0.0) + charge
        seen = int(beat.completions_seen or 0)
        others = tuple(one for proxy, one in self.completions[seen:] if proxy != beat.card.proxy)
        read = len(self.completions)
        self.completions += [(beat.card.proxy, one) for one in beat.completions]
        responses = tuple(one for proxy, one in self.responses[int(beat.responses_seen or 0) :] if proxy != beat.card.proxy)
        responses_read = len(self.responses)
        self.responses += [(beat.card.proxy, one) for one in beat.responses]
        self._answered()
        cards = tuple(replace(card) for card in self.cards.values())
        period = int(self.now_s // PERIOD_S)
        overrides = tuple(said for said in self.overrides.values() if said.until_s > self.now_s)
        return BeatReply(
            self.now_s, cards, period, dict(self.accounts), others, str(read), overrides, responses, str(responses_read)
        )

    async def override(self, said: Override) -> None:
        self._asked("override")
        self.overrides[said.subject] = said
        self._answered()

    async def offers(self, proxy: str) -> AsyncIterator[str]:
        self._asked(f"listen {proxy}")
        await asyncio.Event().wait()
        yield ""

    async def aclose(self) -> None:
        """Nothing is open."""
