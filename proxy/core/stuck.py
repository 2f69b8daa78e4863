"""Heads of the queue that no replica takes, by model: what was found of them stands until something it was found from is another.

The gate looks at its queue after every event, and most events move nothing that a head waits for: a grant, somebody who comes behind it, an
end elsewhere. A head that was blocked everywhere is not asked again

*for KV alone*, while no ledger has changed;
*for anything*, while besides that nothing has changed which its forecast is laid on (``Bank.state``: sums, margins, ages), so that each
replica has the same headroom, and of what bound

- *KV* does again, by that headroom;
- *pacing* does (``core.pacing``) while the whole steps since the ledger's anchor are the same, from which its end is counted, and what
  makes it apply: the burst is still on, or no less waits beside it than when demand exceeded the pools;
- *any other limit* is asked again (``Book.limit``), since time, a scrape or a first token may lift it: a fifth of a look.

It is forgotten at every Tick. Not kept: a head that keeps away from a replica for a while, that a shared store refused, or that shares
blocks with somebody (its peak is read anew at each look).

Fails: what binds at a replica is shown as it was last found for anybody, which may be another than the head.
"""

from collections.abc import Sequence
from typing import NamedTuple

from proxy.core.bank import Bank, BankState
from proxy.core.book import Book
from proxy.core.choice import Blocked
from proxy.core.demand import Demand
from proxy.core.newcomers import Newcomer
from proxy.core.pacing import BurstWatch
from proxy.core.saturation import Binding
from proxy.core.wait_queue import Waiting, WaitQueue
from proxy.core.warmth import Warmth

ROOM = frozenset({Binding.KV, Binding.PACING})
NOT_KEPT = frozenset({Binding.NONE, Binding.UNAVAILABLE, Binding.PEERS})


class Limited(NamedTuple):
    """A limit other than room that bound, and the headroom that it was asked with."""

    book: Book
    headroom_ratio: float
    binding: Binding


class Found(NamedTuple):
    """What a head was found blocked from: by bank; by book, for pacing alone; what waited when demand exceeded the pools (None: a burst was
    on); and the limits to ask again.
    """

    banks: list[BankState]
    ahead_steps: list[int]
    beside_blocks: float | None
    limits: list[Limited]


class Stuck(NamedTuple):
    """A head, how often each ledger had changed, and what else is to be the same; None: it waits for KV alone."""

    head: Waiting
    changes: list[int]
    found: Found | None


class StuckHeads:
    """What was found of the heads that nothing takes."""

    def __init__(self, queue: WaitQueue, burst: BurstWatch, warmth: Warmth) -> None:
        self._queue, self._burst, self._warmth = queue, burst, warmth
        self._stuck: dict[str, Stuck] = {}

    def __repr__(self) -> str:
        """Models whose head is stuck, for people and tests."""
        return f"<StuckHeads {sorted(self._stuck)}>"

    def forget(self) -> None:
        """Everybody is to be asked again."""
        self._stuck.clear()

    def keep(
        self, model: str, head: Waiting, blocked: Blocked, pool: Sequence[Book], banks: Sequence[Bank], now_s: float
    ) -> None:
        """``head`` was just found blocked, and so it is until something changes."""
        found = None
        if not blocked.only_for_kv:
            found = self._found_of(head, blocked, pool, banks, now_s)
            if found is None:
                return
        self._stuck[model] = Stuck(head, [book.ledger.changes for book in pool], found)

    def _found_of(
        self, head: Waiting, blocked: Blocked, pool: Sequence[Book], banks: Sequence[Bank], now_s: float
    ) -> Found | None:
        limits = []
        paced = False
        if not blocked.places or head.avoided:
            return None
        for book, verdict, binding in blocked.places:
            newcomer = verdict.newcomer
            if binding in NOT_KEPT or not isinstance(newcomer, Newcomer) or verdict.curves is not newcomer.curves:
                return None
            paced = paced or binding is Binding.PACING
            if binding not in ROOM:
                limits.append(Limited(book, verdict.headroom_ratio, binding))
        ahead_steps = [book.ahead_steps(now_s) for book in pool] if paced else []
        beside = self._queue.peak_blocks_beside(head.demand.tenant) if blocked.contended else None
        return Found([bank.state(now_s) for bank in banks], ahead_steps, beside, limits)

    def still(self, model: str, head: Waiting, pool: Sequence[Book], banks: Sequence[Bank], now_s: float) -> bool:
        """Whether ``head`` would be found blocked again."""
        stuck = self._stuck.get(model)
        if stuck is None or stuck.head is not head or stuck.changes != [book.ledger.changes for book in pool]:
            return False
        found, demand = stuck.found, head.demand
        if found is None:
            return True
        if found.ahead_steps and not self._paced_still(found, demand.tenant, pool, now_s):
            return False
        if found.banks != [bank.state(now_s) for bank in banks]:
            return False
        return all(self._limited_still(one, demand, now_s) for one in found.limits)

    def _limited_still(self, one: Limited, demand: Demand, now_s: float) -> bool:
        cached_tokens = self._warmth.cached_tokens(demand, (one.book.spec.name,))[0]
        return one.book.limit(demand, one.headroom_ratio, now_s, cached_tokens) is one.binding

    def _paced_still(self, found: Found, tenant: str, pool: Sequence[Book], now_s: float) -> bool:
        if found.beside_blocks is None:
            if not self._burst.active(now_s, tenant):
                return False
        elif self._queue.peak_blocks_beside(tenant) < found.beside_blocks:
            return False
        return found.ahead_steps == [book.ahead_steps(now_s) for book in pool]
