"""Room that a tenant who asks for much leaves for what the others are about to send.

A request that was admitted is not stopped again, so who fills the pool makes the next request of another tenant wait for an answer to end,
however fair the queue is. With ``U`` usable blocks and ``f_i = w_i / sum of w`` over those who are here, a request of tenant ``i`` is held
when all of these hold:

    it asks for much     what it holds and waits for, this one included, exceeds  U * min(2 * f_i, (1 + f_i) / 2)
    it has its share     h_i + p > U * f_i        ``h_i`` blocks that it holds and ``p`` of this one, both at their forecast peaks
    it would disturb     one of the others waits, or  max over t of Q(t) + q(t) + G(t) + k * S(t) > U

``Q`` is the forecast of the pool and ``q`` the mean of this one; ``G`` and ``S`` what the others who come from now on will hold, mean and
spread (``core.tenant_inflow``). ``k`` is the normal quantile of ``undisturbed_ratio``: of 0.99, so many of the others' arrivals find room
at once. Others are tenants of the same or a higher priority, without those who wait for
more than their own share: whose turn it is among those the queue says, and room kept for them would stand empty.

Regimes. One tenant, or nobody else lately: nothing is held. All ask for more than their share: the same. One asks for much beside others
who ask for little: of what ends soon it gets nearly all that is free, since room comes back before the others need it, and a few requests'
worth stays free, the fewer of the pool the larger that is; of what lasts for long it gets only what the others did not need at their
height. Everybody within twice his share, or half of the pool free: nothing is held, since what fluctuates within that is nobody's fault.

What waits of a tenant that asks for much does not count as contention (``core.pacing``) for the others, nor do they stand behind it.

Price: what is kept stands empty for a part of the time. In the simulator an overloaded pool of 35 sequences served 0 to 13 % less.

Fails: as the forecast of arrivals does. Where many tenants have one or two requests each, everybody's next one is above his share, and
room is kept for all from each: it costs most there, and protects from nobody. It keeps blocks of the pool, not on one replica, and
nothing of seats or of prefill time. Several proxies take what comes to the others as like their own.
"""

from collections.abc import Sequence
from math import inf
from statistics import NormalDist
from typing import Protocol

import numpy as np

from proxy.core.book import Book
from proxy.core.demand import Demand
from proxy.core.fleet import Fleet
from proxy.core.grid import FloatArray
from proxy.core.lease import Lease
from proxy.core.ledger import PREFILL_DELAY_STEPS
from proxy.core.placement import Placement
from proxy.core.tenant_inflow import Inflow, Line
from proxy.core.wait_queue import Waiting, WaitQueue

PRESENT_S = 10.0  # who was admitted so lately is here, as is who holds or waits for something
MUCH = 2.0  # fair shares: a tenant with two or three requests at a time has twice as many for moments
RATIO_MAX = 0.9999  # the quantile of 1 is infinite
ROOMY_RATIO = 0.5  # of the pool free at the forecast peak: nobody is in anybody's way yet, and no forecast need be drawn


class Holds(Protocol):
    """What tenants hold of one model's replicas."""

    def any(self, tenant: str) -> bool:
        """Whether it holds something."""

    def blocks(self, tenant: str) -> float:
        """Blocks at their forecast peak."""


class TenantRoom:
    """What tenants were admitted lately, by model, and whether a request leaves room beside it."""

    def __init__(self, fleet: Fleet, queue: WaitQueue, placement: Placement) -> None:
        self.proxies = 1
        self._fleet = fleet
        self._queue = queue
        self._placement = placement
        self._k = -inf
        self._inflow: dict[str, Inflow] = {}  # by model

    def __repr__(self) -> str:
        """Counts for people and tests."""
        return f"<TenantRoom k={self._k:.2f} lines={ {model: len(inflow.lines) for model, inflow in self._inflow.items()} }>"

    def adopt(self, undisturbed_ratio: float) -> None:
        """Go by this ratio from now on."""
        self._k = NormalDist().inv_cdf(min(undisturbed_ratio, RATIO_MAX)) if undisturbed_ratio > 0.0 else -inf

    @property
    def kept(self) -> bool:
        """Whether any is."""
        return self._k > -inf

    def concerns(self, model: str, books: Sequence[Book]) -> bool:
        """Whether several tenants were here lately, and little enough is free that one could be in the others' way."""
        inflow = self._inflow.get(model)
        if inflow is None or not inflow.several:
            return False
        usable = sum(book.spec.usable_blocks for book in books)
        return sum(book.room_ratio * book.spec.usable_blocks for book in books) < ROOMY_RATIO * usable

    def admitted(self, lease: Lease) -> None:
        """A tenant got a lease."""
        model = lease.demand.length_class.model
        inflow = self._inflow.get(model)
        if inflow is None:
            inflow = self._inflow[model] = Inflow()
        inflow.admitted(lease)

    def forget(self, now_s: float) -> None:
        """Close the accounts of those who have been silent for long."""
        for model, inflow in list(self._inflow.items()):
            inflow.forget(now_s)
            if not inflow.lines:
                del self._inflow[model]

    def lets_in(self, entry: Waiting, peak_blocks: float, usable_blocks: float, holds: Holds, now_s: float) -> bool:
        """Whether ``entry``, of ``peak_blocks`` and of a tenant that holds something already, leaves room for the others."""
        demand, inflow = entry.demand, self._inflow[entry.demand.length_class.model]
        usable = usable_blocks / self.proxies
        weight = demand.tenant_weight + self._weight_of_others(inflow, demand.tenant, holds, now_s)
        fair = demand.tenant_weight / weight
        ours = holds.blocks(demand.tenant) + peak_blocks
        waiting = self._waiting_blocks(demand.tenant) - (entry.peak_blocks if entry.sequence else 0.0)
        entry.asks_much = ours + waiting > usable * min(MUCH * fair, (1.0 + fair) / 2.0)
        if ours <= usable * fair or not entry.asks_much:
            return True
        lines = self._disturbed(inflow, demand, usable / weight, holds)
        if any(self._waits(line.tenant, demand) for line in lines):
            return False  # else it might come before them and be paced, and they would stand behind it
        return not lines or self._fits(entry, lines, usable_blocks, now_s)

    def _fits(self, entry: Waiting, others: list[Line], usable_blocks: float, now_s: float) -> bool:
        """Whether ``entry`` and what comes of the others beside it do."""
        pool, model = self._fleet.fresh(now_s), entry.demand.length_class.model
        of_model = [bank for bank in self._placement.banks(pool) if model in bank.models]
        banks = [bank for bank in of_model if len(bank) == len(of_model[0])]  # another context length has another grid
        book = banks[0].books[0]

        def draw(lease: Lease) -> FloatArray:
            return book.ledger.newcomers.forecast(lease.demand, lease.output_tokens_max, PREFILL_DELAY_STEPS).sum

        level = sum((bank.level(now_s) for bank in banks), banks[0].newcomer(entry.demand, now_s, entry.curves).curves.mean)
        come, variance = self.proxies * Inflow.expected(others, book.grid, draw, now_s, book.clock.rate_per_s)
        return float((level + come + self._k * np.sqrt(variance)).max()) <= usable_blocks

    def _waiting_blocks(self, tenant: str) -> float:
        """Forecast peaks of what waits of a tenant, at every priority."""
        bands = self._queue.bands.values()
        return sum(band.tenants[tenant].peak_blocks for band in bands if tenant in band.tenants)

    def _waits(self, tenant: str, beside: Demand) -> bool:
        """Whether a request of the tenant waits for the same model, no lower in priority, and not for a share of its own."""
        if tenant not in self._queue.by_tenant:
            return False
        model, bands = beside.length_class.model, self._queue.bands.items()
        lines = [band.tenants[tenant] for priority, band in bands if priority >= beside.priority and tenant in band.tenants]
        return any(entry.demand.length_class.model == model for line in lines if not line.apart for entry in line.waiting)

    def _weight_of_others(self, inflow: Inflow, tenant: str, holds: Holds, now_s: float) -> float:
        """Weights of the other tenants that are here."""
        here: dict[str, float] = {}
        for line in inflow.lines.values():
            recent = now_s - line.at_s < PRESENT_S
            if recent or holds.any(line.tenant) or line.tenant in self._queue.by_tenant:
                here[line.tenant] = line.weight
        return sum(here.values()) - here.get(tenant, 0.0)

    def _disturbed(self, inflow: Inflow, demand: Demand, share_blocks: float, holds: Holds) -> list[Line]:
        """The others for whom room is kept; ``share_blocks`` is the fair share of weight 1."""
        lines = []
        for line in inflow.lines.values():
            if line.tenant == demand.tenant or line.priority < demand.priority:
                continue
            waits = self._waiting_blocks(line.tenant) if line.tenant in self._queue.by_tenant else 0.0
            if waits and waits + holds.blocks(line.tenant) > share_blocks * line.weight:
                continue
            lines.append(line)
        return lines
