"""Who waits in kvgate, and in which order they are offered room.

Order: bands by priority, higher first; within a band tenants by virtual token-time (least served per weight first); within a tenant by
deadline, then by arrival. A tenant that comes back from idleness starts at the least virtual time of those waiting, or where nobody waits
at that of whoever was served last, so it can claim no credit for its absence (the rule of virtual token counters, reference
algorithms.md §4). The charge is the request's forecast KV
token-time in block-steps, taken at admission and settled at its end.

Bounds: requests, prompt tokens and body bytes; the caller asks ``exceeds`` before pushing. Fails: strict priority can starve a low
band for as long as the higher ones fill the pools; deadlines end that wait with an honest answer.
"""

import heapq
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from proxy.core.demand import Demand
from proxy.core.ledger import CurveCache


@dataclass(slots=True)
class Reservation:
    """Where a head that does not fit is to start: a replica, a step of its clock, and the blocks that will be spare beside it."""

    replica: str
    step: float
    spare_blocks: float


@dataclass(slots=True, eq=False)
class Waiting:
    """One request in the queue. ``charge_block_steps`` and ``peak_blocks`` are forecasts made at arrival."""

    demand: Demand
    enqueued_s: float
    streaming: bool = False
    charge_block_steps: float = 0.0
    peak_blocks: float = 0.0
    excluded: set[str] = field(default_factory=set)  # replicas that failed this request
    curves: CurveCache = field(default_factory=dict)
    reservation: Reservation | None = None
    sequence: int = 0

    @property
    def sort_key(self) -> tuple[float, int]:
        """Deadline, then arrival."""
        return self.demand.deadline_s, self.sequence


@dataclass(slots=True)
class _Tenant:
    weight: float = 1.0
    virtual: float = 0.0
    waiting: list[Waiting] = field(default_factory=list)


@dataclass(slots=True)
class _Band:
    """Tenants of one priority. ``clock`` is the virtual time of whoever was served last; ``charge`` sums those waiting."""

    tenants: dict[str, _Tenant] = field(default_factory=dict)
    clock: float = 0.0
    charge: float = 0.0

    def start(self) -> float:
        """Where a tenant begins that comes, or comes back from idleness: no credit for its absence."""
        return min((tenant.virtual for tenant in self.tenants.values() if tenant.waiting), default=self.clock)

    def tenant(self, name: str) -> _Tenant:
        """The tenant's account, opened where it has none."""
        found = self.tenants.get(name)
        if found is None:
            found = self.tenants[name] = _Tenant(virtual=self.start())
        return found


class WaitQueue:
    """The fair queue of one pool."""

    def __init__(self, *, requests_max: int, tokens_max: int, bytes_max: int) -> None:
        self.requests_max = requests_max
        self.tokens_max = tokens_max
        self.bytes_max = bytes_max
        self.tokens = 0
        self.bytes = 0
        self.peak_blocks = 0.0
        self._bands: dict[int, _Band] = {}
        self._by_id: dict[str, Waiting] = {}
        self._sequence = 0

    def __len__(self) -> int:
        """Requests waiting."""
        return len(self._by_id)

    def __repr__(self) -> str:
        """Counts for people and tests."""
        return f"<WaitQueue requests={len(self)} tokens={self.tokens} bytes={self.bytes}>"

    def exceeds(self, demand: Demand) -> tuple[str, int, int] | None:
        """The bound that one more request would break: (policy key, value with it, limit)."""
        for key, value, limit in (
            ("queue.requests_max", len(self) + 1, self.requests_max),
            ("queue.tokens_max", self.tokens + demand.prompt_tokens, self.tokens_max),
            ("queue.bytes_max", self.bytes + demand.body_bytes, self.bytes_max),
        ):
            if value > limit:
                return key, value, limit
        return None

    def push(self, entry: Waiting, *, front: bool = False) -> None:
        """Take a request in; ``front`` puts a rerouted one before everybody of its tenant."""
        demand = entry.demand
        assert demand.request_id not in self._by_id, demand.request_id
        self._sequence += 1
        entry.sequence = -self._sequence if front else self._sequence
        band = self._bands.setdefault(demand.priority, _Band())
        tenant = band.tenant(demand.tenant)
        tenant.weight = demand.tenant_weight
        if not tenant.waiting:
            tenant.virtual = max(tenant.virtual, band.start())
        insort(tenant.waiting, entry, key=lambda item: (-inf, item.sequence) if item.sequence < 0 else item.sort_key)
        self._by_id[demand.request_id] = entry
        self._count(entry, 1)

    def _count(self, entry: Waiting, sign: int) -> None:
        self.tokens += sign * entry.demand.prompt_tokens
        self.bytes += sign * entry.demand.body_bytes
        self._bands[entry.demand.priority].charge += sign * entry.charge_block_steps
        self.peak_blocks += sign * entry.peak_blocks

    def remove(self, request_id: str) -> Waiting | None:
        """Take a request out; None when it does not wait."""
        entry = self._by_id.pop(request_id, None)
        if entry is not None:
            self._bands[entry.demand.priority].tenants[entry.demand.tenant].waiting.remove(entry)
            self._count(entry, -1)
        return entry

    def charge(self, demand: Demand, block_steps: float) -> None:
        """Account token-time to a tenant; negative to give back what was not used."""
        band = self._bands.setdefault(demand.priority, _Band())
        tenant = band.tenant(demand.tenant)
        tenant.virtual += block_steps / max(demand.tenant_weight, 1e-6)
        if block_steps > 0.0:
            band.clock = max(band.clock, tenant.virtual)

    def charge_ahead(self, priority: int | None) -> float:
        """Block-steps waiting in the band of ``priority`` and above; in the whole queue for None."""
        return sum(band.charge for key, band in self._bands.items() if priority is None or key >= priority)

    def order(self) -> Iterator[Waiting]:
        """Everybody in the order in which room is offered, as if each were charged in turn."""
        for priority in sorted(self._bands, reverse=True):
            heap = [(tenant.virtual, name, 0) for name, tenant in self._bands[priority].tenants.items() if tenant.waiting]
            heapq.heapify(heap)
            while heap:
                virtual, name, index = heapq.heappop(heap)
                tenant = self._bands[priority].tenants[name]
                entry = tenant.waiting[index]
                if index + 1 < len(tenant.waiting):
                    after = virtual + entry.charge_block_steps / max(tenant.weight, 1e-6)
                    heapq.heappush(heap, (after, name, index + 1))
                yield entry

    def displaceable(self, demand: Demand) -> list[Waiting] | None:
        """Whom of the lower bands to displace so that ``demand`` has room, the worst first; None when even all of them would not do."""
        requests, tokens, body = len(self) + 1, self.tokens + demand.prompt_tokens, self.bytes + demand.body_bytes
        chosen: list[Waiting] = []
        for priority in sorted(key for key in self._bands if key < demand.priority):
            waiting = [entry for tenant in self._bands[priority].tenants.values() for entry in tenant.waiting]
            for entry in sorted(waiting, key=lambda one: one.sort_key, reverse=True):
                if requests <= self.requests_max and tokens <= self.tokens_max and body <= self.bytes_max:
                    return chosen
                chosen.append(entry)
                requests, tokens, body = requests - 1, tokens - entry.demand.prompt_tokens, body - entry.demand.body_bytes
        return chosen if requests <= self.requests_max and tokens <= self.tokens_max and body <= self.bytes_max else None

    def expired(self, now_s: float) -> list[Waiting]:
        """Requests whose deadline has come."""
        return [entry for entry in self._by_id.values() if entry.demand.deadline_s <= now_s]

    def deadline_s_next(self) -> float:
        """Earliest deadline; infinite when nobody waits."""
        return min((entry.demand.deadline_s for entry in self._by_id.values()), default=inf)

    def position(self, request_id: str) -> int | None:
        """Place in the order, 1 for the head; None when it does not wait."""
        for index, entry in enumerate(self.order()):
            if entry.demand.request_id == request_id:
                return index + 1
        return None

    def oldest_s(self, now_s: float) -> float:
        """Age of the longest wait."""
        return max((now_s - entry.enqueued_s for entry in self._by_id.values()), default=0.0)

    def forget_idle(self) -> None:
        """Close accounts that would be opened again just as they are: nobody waiting, no lead in virtual time over the band."""
        for band in self._bands.values():
            floor = band.start()
            idle = [name for name, tenant in band.tenants.items() if not tenant.waiting and tenant.virtual <= floor]
            for name in idle:
                del band.tenants[name]
