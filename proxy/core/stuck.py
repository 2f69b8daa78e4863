"""Heads of the queue that no replica takes, by model: what was found of them stands until something it was found from is another.

The gate looks at its queue after every event, and most events move nothing that a head waits for: a grant, somebody who comes behind it, an
end elsewhere. A head that was blocked everywhere is not asked again

*for KV alone*, while no ledger has changed;
*for KV or pacing*, while besides that nothing has changed which pacing is reckoned from (``core.pacing``): the sums, margins and ages that
its curves were laid on (``Bank.state``), the whole steps since each ledger's anchor, from which its end is counted, and what makes pacing
apply: the burst is still on, or no less waits beside it than when demand exceeded the pools. Then each replica has the same headroom and
the same ends around the head's own, so KV and pacing say what they said; any other limit only adds to them.

It is forgotten at every Tick. Not kept: a head for which anything else binds (a limit that time lifts), that keeps away from a replica
for a while, or that shares blocks with somebody (its peak is read anew at each look).

Fails: what binds at a replica is shown as it was found; one closed for another reason meanwhile is shown so at the next look.
"""

from collections.abc import Sequence
from typing import NamedTuple

from proxy.core.bank import Bank, BankState
from proxy.core.book import Book
from proxy.core.choice import Blocked
from proxy.core.newcomers import Newcomer
from proxy.core.pacing import BurstWatch
from proxy.core.saturation import Binding
from proxy.core.wait_queue import Waiting, WaitQueue

ROOM = frozenset({Binding.KV, Binding.PACING})


class Paced(NamedTuple):
    """What pacing was reckoned from, by bank and by book, and what waited when demand exceeded the pools; None: a burst was on."""

    banks: list[BankState]
    ahead_steps: list[int]
    beside_blocks: float | None


class Stuck(NamedTuple):
    """A head, how often each ledger had changed, and what else is to be the same; None: it waits for KV alone."""

    head: Waiting
    changes: list[int]
    paced: Paced | None


class StuckHeads:
    """What was found of the heads that nothing takes."""

    def __init__(self, queue: WaitQueue, burst: BurstWatch) -> None:
        self._queue = queue
        self._burst = burst
        self._found: dict[str, Stuck] = {}

    def __repr__(self) -> str:
        """Models whose head is stuck, for people and tests."""
        return f"<StuckHeads {sorted(self._found)}>"

    def forget(self) -> None:
        """Everybody is to be asked again."""
        self._found.clear()

    def keep(
        self, model: str, head: Waiting, blocked: Blocked, pool: Sequence[Book], banks: Sequence[Bank], now_s: float
    ) -> None:
        """``head`` was just found blocked, and so it is until something changes."""
        paced = None
        if not blocked.only_for_kv:
            if not blocked.places or head.avoided:
                return
            for _, verdict, binding in blocked.places:
                newcomer = verdict.newcomer
                if binding not in ROOM or not isinstance(newcomer, Newcomer) or verdict.curves is not newcomer.curves:
                    return
            beside = self._queue.peak_blocks_beside(head.demand.tenant) if blocked.contended else None
            paced = Paced([bank.state(now_s) for bank in banks], [book.ahead_steps(now_s) for book in pool], beside)
        self._found[model] = Stuck(head, [book.ledger.changes for book in pool], paced)

    def still(self, model: str, head: Waiting, pool: Sequence[Book], banks: Sequence[Bank], now_s: float) -> bool:
        """Whether ``head`` would be found blocked again."""
        found = self._found.get(model)
        if found is None or found.head is not head or found.changes != [book.ledger.changes for book in pool]:
            return False
        paced, tenant = found.paced, head.demand.tenant
        if paced is None:
            return True
        if paced.beside_blocks is None:
            if not self._burst.active(now_s, tenant):
                return False
        elif self._queue.peak_blocks_beside(tenant) < paced.beside_blocks:
            return False
        same = paced.ahead_steps == [book.ahead_steps(now_s) for book in pool]
        return same and paced.banks == [bank.state(now_s) for bank in banks]
