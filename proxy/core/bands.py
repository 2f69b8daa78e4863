"""The lines of a queue: one per tenant, grouped by priority, and how much work is ahead of a place in them.

Work ahead of a place at the end of tenant ``i``'s promised line, of work ``w_i``, virtual time ``v_i`` and weight ``f_i``, if nobody else
came: by the time the tenant has been served ``w_i`` the others ``j`` of its band have been served up to the same virtual time,

    ahead = all of the higher bands + w_i + sum over j of min(w_j, max(0, (v_i + w_i / f_i - v_j) * f_j))

It costs O(tenants waiting), whatever the number of requests. A line that is at several proxies is one line, whose requests go by their
deadlines wherever they wait: what is promised of it elsewhere is ahead of its end as well, and moves at the rate that is measured there.

Fails: who comes later and goes ahead of the place is not in it; the measured rate of the tenant's own line tells of those.
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from proxy.core.charging import MeanLength, Scale
from proxy.core.demand import Demand
from proxy.core.drain import DrainMeter
from proxy.core.waiting import Waiting, sort_key


@dataclass(slots=True)
class TenantLine:
    """One tenant's line, in order. ``charge`` sums those with a promise, ``peak_blocks`` the forecast peaks of all; ``apart`` says that
    when last looked at its first one was kept from going by its tenant's share, or is of a tenant that asks for much. ``drain``
    measures how fast the line moves, ``length`` and ``scale`` are for ``core.charging``; ``charge_elsewhere`` and ``elsewhere_per_s`` are
    those with a promise at other proxies, and how fast they move there, in block-steps.
    """

    weight: float = 1.0
    virtual: float = 0.0
    charge: float = 0.0
    peak_blocks: float = 0.0
    apart: bool = False
    waiting: list[Waiting] = field(default_factory=list)
    drain: DrainMeter = field(default_factory=DrainMeter)
    length: MeanLength = field(default_factory=MeanLength)
    scale: Scale = field(default_factory=Scale)
    charge_elsewhere: float = 0.0
    elsewhere_per_s: float = 0.0

    def before(self, rank_s: float) -> float:
        """Block-steps of those with a promise that go before one of this rank, mostly all."""
        waiting = self.waiting
        if not waiting or waiting[-1].rank_s <= rank_s:
            return max(0.0, self.charge)
        key = (False, rank_s, inf)
        return sum(entry.charge_block_steps for entry in waiting[: bisect_left(waiting, key, key=sort_key)])


@dataclass(frozen=True, slots=True)
class Ahead:
    """Work ahead of a place at this proxy, in block-steps: all of it, and that of the same tenant; that tenant's line, where it has one."""

    total: float
    own: float
    line: TenantLine | None


@dataclass(slots=True)
class Band:
    """Tenants of one priority. ``clock`` is the virtual time of whoever was served last, ``floor_elsewhere`` the least of those that wait
    in other queues of the same tenants (infinite: nobody); ``charge`` sums those with a promise.
    """

    tenants: dict[str, TenantLine] = field(default_factory=dict)
    clock: float = 0.0
    floor_elsewhere: float = inf
    charge: float = 0.0

    def start(self) -> float:
        """Where a tenant begins that comes, or comes back from idleness: no credit for its absence."""
        floor = min(self.floor(), self.floor_elsewhere)
        return self.clock if floor == inf else floor

    def floor(self) -> float:
        """The least virtual time of those waiting here; infinite: nobody."""
        return min((tenant.virtual for tenant in self.tenants.values() if tenant.waiting), default=inf)

    def tenant(self, name: str) -> TenantLine:
        """The tenant's account, opened where it has none."""
        found = self.tenants.get(name)
        if found is None:
            found = self.tenants[name] = TenantLine(virtual=self.start())
        return found

    def order(self) -> Iterator[Waiting]:
        """Everybody in the order in which room is offered, as if each were charged in turn.

        Of tenants at the same virtual time the one with less waiting is first: one that comes back starts where those who wait are.
        """
        heap = [(tenant.virtual, len(tenant.waiting), name, 0) for name, tenant in self.tenants.items() if tenant.waiting]
        if len(heap) == 1:  # its line, as it is
            yield from self.tenants[heap[0][2]].waiting
            return
        heapq.heapify(heap)
        while heap:
            virtual, _, name, index = heapq.heappop(heap)
            tenant = self.tenants[name]
            entry = tenant.waiting[index]
            if index + 1 < len(tenant.waiting):
                after = virtual + entry.charge_block_steps * tenant.scale.ratio / max(tenant.weight, 1e-6)
                heapq.heappush(heap, (after, len(tenant.waiting), name, index + 1))
            yield entry

    def ahead(self, demand: Demand, rank_s: float, above: float) -> Ahead:
        """What is ahead of a place in the tenant's promised line; ``above`` is the work of the higher bands."""
        tenant = self.tenants.get(demand.tenant)
        own, virtual = 0.0, self.start()
        if tenant is not None:
            own = tenant.before(rank_s)
            virtual = tenant.virtual if tenant.waiting else max(tenant.virtual, virtual)
        own_scale = 1.0 if tenant is None else tenant.scale.ratio
        until = virtual + own * own_scale / max(demand.tenant_weight, 1e-6)
        others = sum(
            min(other.charge, (until - other.virtual) * other.weight / other.scale.ratio)
            for other in self.tenants.values()
            if other is not tenant and other.charge > 0.0 and other.virtual < until
        )
        return Ahead(above + own + others, own, tenant)


def taken(order: Iterator[Waiting], takes: Callable[[Waiting], bool], bands: Mapping[int, Band]) -> Iterator[Waiting]:
    """Those of ``order`` whom their tenant's share lets go; behind one whom it does not, nobody of its line does. Marks the lines."""
    kept: set[tuple[int, str]] = set()
    for entry in order:
        line = entry.demand.priority, entry.demand.tenant
        if line in kept:
            continue
        goes = takes(entry)
        bands[line[0]].tenants[line[1]].apart = not goes or entry.asks_much
        if goes:
            yield entry
        else:
            kept.add(line)


def peak_blocks_apart(bands: Mapping[int, Band], tenant: str) -> float:
    """Forecast peaks of what waits in lines that stand apart, but for the tenant's own."""
    lines = (line for band in bands.values() for name, line in band.tenants.items() if name != tenant)
    return sum(line.peak_blocks for line in lines if line.apart and line.waiting)
