"""Who waits in kvgate, and in which order they are offered room.

Order: bands by priority, higher first; within a band tenants by virtual token-time (least served per weight first); within a tenant
those with a promise before those standing by (``core.shedding``), then by latest start (``Waiting.rank_s``), then by arrival. A tenant
that comes back from idleness starts at the least virtual time of those waiting, or where nobody waits at that of whoever was served last,
so it can claim no credit for its absence (the rule of virtual token counters, reference algorithms.md §4). The charge is the request's
KV token-time in block-steps, taken at admission for a length as those of the tenant's past answers (``core.charging``) and settled at
its end.

Bounds: requests, prompt tokens and body bytes, and of each class its own; the caller asks ``exceeds`` before pushing. A tenant that has
its share of the pool (``core.tenant_shares``) keeps its place but is not offered room, and holds up nobody else.

Fails: strict priority can starve a low band for as long as the higher ones fill the pools; deadlines end that wait with an honest answer.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Set
from itertools import islice
from math import inf

from proxy.core.bands import Ahead, Band, TenantLine, peak_blocks_apart, taken
from proxy.core.charging import MeanLength
from proxy.core.demand import Demand
from proxy.core.drain import DrainMeter
from proxy.core.queue_bounds import QueueBounds
from proxy.core.waiting import Reservation, Waiting, sort_key

__all__ = ["Reservation", "WaitQueue", "Waiting"]


class WaitQueue(QueueBounds):
    """The fair queue of one pool."""

    def __init__(self, *, requests_max: int, tokens_max: int, bytes_max: int) -> None:
        super().__init__(requests_max=requests_max, tokens_max=tokens_max, bytes_max=bytes_max)
        self.takes: Callable[[Waiting], bool] | None = (
            None  # whether its tenant's share lets it go now; None: there are no shares
        )
        self.drain = DrainMeter()
        self._length = MeanLength()  # of all tenants
        self._deadlines: list[tuple[float, int, Waiting]] = []
        self._standing_by: dict[str, Waiting] = {}
        self.bands: dict[int, Band] = {}
        self._by_id: dict[str, Waiting] = {}
        self._sequence = 0
        self.charged: dict[tuple[int, str], float] | None = (
            None  # by priority and tenant, token-time per weight since last taken; None: nobody asks
        )

    def __len__(self) -> int:
        """Requests waiting."""
        return len(self._by_id)

    def __repr__(self) -> str:
        """Counts for people and tests."""
        return f"<WaitQueue requests={len(self)} tokens={self.tokens} bytes={self.bytes}>"

    def push(self, entry: Waiting, *, front: bool = False) -> None:
        """Take a request in; ``front`` puts a rerouted one before everybody of its tenant."""
        demand = entry.demand
        assert demand.request_id not in self._by_id, demand.request_id
        self._sequence += 1
        entry.sequence = -self._sequence if front else self._sequence
        band = self.band(demand.priority)
        tenant = band.tenant(demand.tenant)
        tenant.weight = demand.tenant_weight
        if not tenant.waiting:
            tenant.virtual, tenant.apart = max(tenant.virtual, band.start()), False
        self._lapse(tenant)
        self._insert(entry, band, tenant)

    def put_back(self, entry: Waiting) -> None:
        """One that was removed as admitted did not get its place: it waits where it did before."""
        self._sequence += 1
        band, tenant = self._account(entry)
        self._lapse(tenant)
        for drain in (self.drain, tenant.drain):
            drain.admitted(-entry.charge_block_steps)
        self._insert(entry, band, tenant)

    def _insert(self, entry: Waiting, band: Band, tenant: TenantLine) -> None:
        demand = entry.demand
        insort(tenant.waiting, entry, key=sort_key)
        self._by_id[demand.request_id] = entry
        heapq.heappush(self._deadlines, (entry.start_by_s, self._sequence, entry))
        self.count(entry, 1)
        self._count_charge(entry, band, tenant, 1)
        if not entry.promised:
            self._standing_by[demand.request_id] = entry

    def _lapse(self, tenant: TenantLine) -> None:
        """Let the meters see the time since something last changed."""
        self.drain.lapse(self.now_s, waited=bool(self._by_id))
        tenant.drain.lapse(self.now_s, waited=bool(tenant.waiting))

    @staticmethod
    def _count_charge(entry: Waiting, band: Band, tenant: TenantLine, sign: int) -> None:
        tenant.peak_blocks += sign * entry.peak_blocks
        if entry.promised:
            band.charge += sign * entry.charge_block_steps
            tenant.charge += sign * entry.charge_block_steps

    def remove(self, request_id: str, *, admitted: bool = False) -> Waiting | None:
        """Take a request out, ``admitted`` when it got a place; None when it does not wait."""
        entry = self._by_id.get(request_id)
        if entry is None:
            return None
        band, tenant = self._account(entry)
        self._lapse(tenant)
        if admitted:
            self.drain.admitted(entry.charge_block_steps)
            tenant.drain.admitted(entry.charge_block_steps)
        del tenant.waiting[bisect_left(tenant.waiting, entry.sort_key, key=sort_key)]
        del self._by_id[request_id]
        self._standing_by.pop(request_id, None)
        self.count(entry, -1)
        self._count_charge(entry, band, tenant, -1)
        return entry

    def _account(self, entry: Waiting) -> tuple[Band, TenantLine]:
        band = self.bands[entry.demand.priority]
        return band, band.tenant(entry.demand.tenant)

    def promise(self, entry: Waiting) -> None:
        """One that stood by will start in time after all: it joins the promised ones of its tenant, as if it had come now."""
        assert not entry.promised, entry.demand.request_id
        band, tenant = self._account(entry)
        del tenant.waiting[bisect_left(tenant.waiting, entry.sort_key, key=sort_key)]
        del self._standing_by[entry.demand.request_id]
        entry.promised, entry.rank_s = True, entry.rank_s + self.now_s - entry.enqueued_s
        insort(tenant.waiting, entry, key=sort_key)
        band.charge += entry.charge_block_steps
        tenant.charge += entry.charge_block_steps

    def standing_by(self) -> list[Waiting]:
        """Those without a promise, in the order of their coming."""
        return list(self._standing_by.values())

    def charge(self, demand: Demand, block_steps: float) -> TenantLine:
        """Account token-time to a tenant; negative to give back what was not used. Returns its account."""
        virtual = block_steps / max(demand.tenant_weight, 1e-6)
        if self.charged is not None:
            key = (demand.priority, demand.tenant)
            self.charged[key] = self.charged.get(key, 0.0) + virtual
        return self.charged_elsewhere(demand.priority, demand.tenant, virtual)  # as any charge moves it

    def charged_elsewhere(self, priority: int, tenant: str, virtual: float) -> TenantLine:
        """Another queue of the same tenants has charged one of them so much token-time per weight. Returns its account."""
        band = self.band(priority)
        account = band.tenant(tenant)
        account.virtual += virtual
        if virtual > 0.0 and account.virtual > band.clock:
            band.clock = account.virtual
        return account

    def clocks(self) -> dict[int, float]:
        """Virtual time of whoever was served last, by priority."""
        return {priority: band.clock for priority, band in self.bands.items()}

    def clock_elsewhere(self, priority: int, virtual: float) -> None:
        """In another queue of the same tenants one was served who had come so far: nobody begins here with credit over it."""
        band = self.band(priority)
        band.clock = max(band.clock, virtual)

    def virtual(self, demand: Demand) -> float:
        """Virtual time of the demand's tenant, from which it is served."""
        band = self.bands.get(demand.priority)
        if band is None:
            return 0.0
        tenant = band.tenants.get(demand.tenant)
        if tenant is None:
            return band.start()
        return tenant.virtual if tenant.waiting else max(tenant.virtual, band.start())

    def output_tokens_expected(self, demand: Demand, forecast: float) -> float:
        """Output tokens to charge a request for; ``forecast`` is what to think before any has ended."""
        every = self._length.expected(forecast) if self._length.count else forecast
        band = self.bands.get(demand.priority)
        tenant = None if band is None else band.tenants.get(demand.tenant)
        return every if tenant is None else tenant.length.expected(every)

    def charge_ahead_of_end(self, demand: Demand, block_steps: float, forecast: float) -> None:
        """Account the expected token-time of an admission; ``forecast`` is that of its curves, 0 where none were drawn."""
        account = self.charge(demand, block_steps)
        if forecast:
            account.scale.admitted(block_steps, forecast)

    def take_back(self, demand: Demand, block_steps: float, forecast: float) -> None:
        """An admission that was charged so did not come about. Where it was what came furthest, the band's clock goes back as well."""
        band, furthest = self.bands[demand.priority], self._line(demand).virtual
        self.charge(demand, -block_steps)
        if band.clock <= furthest:
            band.clock = max(tenant.virtual for tenant in band.tenants.values())
        if forecast:
            self._line(demand).scale.returned(block_steps, forecast)

    def settle(self, demand: Demand, charged: float, used: float, output_tokens: float) -> None:
        """A request took ``used`` block-steps where ``charged`` were charged, with so many tokens out of each sequence."""
        self._length.ended(output_tokens)
        self.charge(demand, used - charged).length.ended(output_tokens)

    def _line(self, demand: Demand) -> TenantLine:
        return self.band(demand.priority).tenant(demand.tenant)

    def band(self, priority: int) -> Band:
        band = self.bands.get(priority)
        if band is None:
            band = self.bands[priority] = Band()
        return band

    def ahead(self, demand: Demand, rank_s: float) -> Ahead:
        """What is ahead of a place of this rank among the promised ones of the demand's tenant. Standing by is behind all of those."""
        above = sum(max(0.0, band.charge) for key, band in self.bands.items() if key > demand.priority)  # rounding may leave less
        band = self.bands.get(demand.priority)
        if band is None:
            return Ahead(above, 0.0, None)
        if demand.tenant in band.tenants:
            self._lapse(band.tenants[demand.tenant])
        return band.ahead(demand, rank_s, above)

    def order(self) -> Iterator[Waiting]:
        """Everybody in the order in which room is offered, as if each were charged in turn."""
        for priority in sorted(self.bands, reverse=True):
            yield from self.bands[priority].order()

    def ready(self) -> Iterator[Waiting]:
        """As ``order``, without tenants whose share keeps the first of their line from going."""
        return self.order() if self.takes is None else taken(self.order(), self.takes, self.bands)

    def peak_blocks_beside(self, tenant: str) -> float:
        """Forecast peaks of what waits and may take the room that the tenant waits for: lines that stand apart let it go ahead."""
        return self.peak_blocks if self.takes is None else self.peak_blocks - peak_blocks_apart(self.bands, tenant)

    def heads(self) -> list[Waiting]:
        """The first of every priority that one waits with and may go, the highest first."""
        bands = (self.bands[priority].order() for priority in sorted(self.bands, reverse=True))
        ready = bands if self.takes is None else (taken(band, self.takes, self.bands) for band in bands)
        return [entry for band in ready for entry in islice(band, 1)]

    def displaceable(self, demand: Demand) -> list[Waiting] | None:
        """Whom of the lower bands to displace so that ``demand`` has room, the worst first; None when even all of them would not do."""
        if self.exceeds_own(demand) is not None:
            return None
        requests, tokens, body = self.requests + 1, self.tokens + demand.prompt_tokens, self.bytes + demand.body_bytes
        chosen: list[Waiting] = []
        for priority in sorted(key for key in self.bands if key < demand.priority):
            waiting = [entry for tenant in self.bands[priority].tenants.values() for entry in tenant.waiting]
            for entry in sorted(waiting, key=lambda one: one.sort_key, reverse=True):
                if requests <= self.requests_max and tokens <= self.tokens_max and body <= self.bytes_max:
                    return chosen
                chosen.append(entry)
                requests, tokens, body = requests - 1, tokens - entry.demand.prompt_tokens, body - entry.demand.body_bytes
        return chosen if requests <= self.requests_max and tokens <= self.tokens_max and body <= self.bytes_max else None

    def unreserve(self, replicas: Set[str]) -> None:
        """Nobody has a place reserved but on these: those of the others are to be found anew."""
        for entry in self._by_id.values():
            if entry.reservation is not None and entry.reservation.replica not in replicas:
                entry.reservation = None

    def expired(self, now_s: float) -> list[Waiting]:
        """Requests whose latest start has come, the earliest first."""
        found: list[Waiting] = []
        while self.deadline_s_next() <= now_s:
            entry = heapq.heappop(self._deadlines)[2]
            if entry not in found:  # it may have been put back
                found.append(entry)
        for entry in found:  # they wait until they are removed
            heapq.heappush(self._deadlines, (entry.start_by_s, abs(entry.sequence), entry))
        return found

    def deadline_s_next(self) -> float:
        """Earliest of the latest starts; infinite when nobody waits."""
        while self._deadlines and self._by_id.get(self._deadlines[0][2].demand.request_id) is not self._deadlines[0][2]:
            heapq.heappop(self._deadlines)  # it left before its deadline
        return self._deadlines[0][0] if self._deadlines else inf

    def get(self, request_id: str) -> Waiting | None:
        """The request, if it waits."""
        return self._by_id.get(request_id)

    def position(self, request_id: str) -> int | None:
        """Place in the order, 1 for the head; None when it does not wait."""
        for index, entry in enumerate(self.order()):
            if entry.demand.request_id == request_id:
                return index + 1
        return None

    def entries(self) -> list[Waiting]:
        """Everybody as they are at this moment, in no order."""
        return list(self._by_id.values())

    def forget_idle(self) -> None:
        """Close accounts that would be opened again just as they are: nobody waiting, no lead in virtual time over the band."""
        for band in self.bands.values():
            floor = band.start()
            idle = [name for name, tenant in band.tenants.items() if not tenant.waiting and tenant.virtual <= floor]
            for name in idle:
                del band.tenants[name]
