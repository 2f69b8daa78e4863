"""Observe: what enforcing would have done to a request that goes on all the same, told from the shadow ledger.

Decides nothing that a request feels. Every request is booked, so that the ledger shows what the replicas hold; a request *would be shed*
when no waiting could cure it or its tenant's rate is used up, and *would be held* when no replica's verdict is that it fits.

How long it would have waited is estimated from a shadow queue, a line of block-steps that drains at the ideal rate:

    R = FILL_RATIO * sum of usable blocks * steps per second        block-steps per second
    B <- max(0, B - R * dt),  W = (B + c) / R,  B <- B + c          c: what the request takes, by its forecast

W is W of a fluid: exact where many small requests wait, too long for the first few of a line (the room they need may come free at once).

*Enforcing by degrees.* Under ``enforce`` a share of the tenants, ``enforce_ratio``, is enforced, the others are observed, in one ledger: a
tenant's name is hashed to a place in [0, 1), and the first ``enforce_ratio`` of it is enforced. The places never change, so who is enforced
at 5 % still is at 20 %. Fails where there are few tenants: one alone is enforced altogether or not at all.
"""

from functools import lru_cache
from hashlib import blake2b

from proxy.core.book import Book
from proxy.core.demand import Demand
from proxy.core.outcome import GateCounters, Would
from proxy.core.shedding import Shedding
from proxy.core.wait_forecast import FILL_RATIO

PLACES_KEPT = 4096  # tenants whose place need not be worked out again


def among_first(ratio: float, tenant: str) -> bool:
    """Whether the tenant is in the first ``ratio`` of all."""
    return ratio >= 1.0 or place_of(tenant) < ratio


@lru_cache(PLACES_KEPT)
def place_of(tenant: str) -> float:
    """A tenant's place in [0, 1), the same in every proxy and for ever."""
    return int.from_bytes(blake2b(tenant.encode(), digest_size=6).digest()) / 2**48


class Observing:
    """The shadow queue."""

    def __init__(self, shedding: Shedding, counters: GateCounters) -> None:
        self._shedding = shedding
        self._counters = counters
        self._line_block_steps = 0.0
        self._looked_s = 0.0

    def look(
        self, demand: Demand, books: list[Book], serving: list[Book], now_s: float, *, refused: bool = False
    ) -> Would | None:
        """What enforcing would do to ``demand`` now; None: admit it. ``serving`` are those of ``books`` that it can go to, ``refused``
        says that its tenant's rate or share is used up.
        """
        if refused or self._shedding.at_once(demand, books) is not None:
            self._counters.would_shed += 1
            return Would(None)
        if any(book.verdict(demand, now_s).fits for book in serving):
            return None
        self._counters.would_hold += 1
        rate_per_s = max(FILL_RATIO * sum(book.spec.usable_blocks * book.clock.rate_per_s for book in serving), 1e-9)
        drained = rate_per_s * (now_s - self._looked_s)
        line = max(0.0, self._line_block_steps - drained)
        book = serving[0]
        self._line_block_steps = line + book.block_steps(book.newcomer(demand, now_s, None).curves)
        self._looked_s = now_s
        return Would(self._line_block_steps / rate_per_s)
