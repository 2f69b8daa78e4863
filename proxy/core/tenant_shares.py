"""Whether a tenant's share of the pool's KV blocks lets a request of its in now.

Decides, over the replicas of the request's model with ``U`` usable blocks, ``F`` of them forecast to be held at the peak, ``h_i`` by
tenant ``i``, and ``p`` the forecast peak of the request, of tenant ``i`` with ceiling ``c_i`` and floor ``f_i``:

    ceiling   h_i + p <= c_i * U / N                   or nothing of the tenant is there, or it has none: c_i = 1
    floor     F + p <= U - sum over j != i of max(0, f_j * U - h_j)
              or  h_i + p <= f_i * U                   or nothing at all is there
    room      what ``core.tenant_room`` keeps for the others, while one asks for much

A forecast peak is that of the mean curve, from what is held now on; what requests share is counted for each. ``N`` is how many proxies
there are: each sees only its own requests, so each keeps to an equal part of the ceiling, and a tenant that is at few of them gets less.
The last words of both lines are the rule that an empty replica takes anything: one request larger than its tenant's share goes alone.

Who is held back by it waits in the queue without holding up other tenants, and those of its own behind it wait too. What exceeds the
ceiling by its prompt alone is refused at once.

Fails: by as much as lengths exceed their forecast. The floor keeps blocks of the pool, not on one replica, so a large request may find
them in pieces.
"""

from collections.abc import Generator, Iterable, Sequence

import numpy as np

from proxy.core.book import Book
from proxy.core.demand import Demand
from proxy.core.fleet import Fleet
from proxy.core.lease import Lease
from proxy.core.outcome import Outcome, Refusal
from proxy.core.policy_tenants import Tenants
from proxy.core.tenant_room import TenantRoom
from proxy.core.waiting import Waiting

CEILING, FLOOR, ROOM = "kv_share_max", "kv_share_min", "undisturbed_ratio"
SLACK = 1e-9


class TenantShares:
    """What tenants hold of the pool, and what the policy says to it."""

    def __init__(self, tenants: Tenants, fleet: Fleet, room: TenantRoom) -> None:
        self.tenants = tenants
        self.room = room
        self._fleet = fleet
        self._leases: dict[str, dict[str, Lease]] = {}  # by tenant and lease
        self._held: dict[str, dict[str, tuple[int, float]]] = {}  # by tenant and model, and as of which change of the ledgers

    def __repr__(self) -> str:
        """Counts for people and tests."""
        return f"<TenantShares tenants={len(self._leases)}>"

    @property
    def proxies(self) -> int:
        """How many proxies there are."""
        return self.room.proxies

    @proxies.setter
    def proxies(self, count: int) -> None:
        self.room.proxies = count

    @property
    def active(self) -> bool:
        """Whether any tenant's share is bounded or kept."""
        return self.tenants.shared

    def started(self, lease: Lease) -> None:
        """A tenant got a lease."""
        if self.room.kept:
            self.room.admitted(lease)
        self._leases.setdefault(lease.demand.tenant, {})[lease.lease_id] = lease

    def ended(self, lease: Lease) -> None:
        """It is over."""
        leases = self._leases.get(lease.demand.tenant, {})
        leases.pop(lease.lease_id, None)
        if not leases:
            self._leases.pop(lease.demand.tenant, None)
            self._held.pop(lease.demand.tenant, None)

    def holding(self) -> list[str]:
        """Tenants with a lease."""
        return list(self._leases)

    def held_blocks(self, tenant: str, books: Iterable[Book]) -> float:
        """Blocks that the tenant's requests are forecast to hold at their peak on these replicas, each at its own."""
        leases = self._leases.get(tenant)
        if not leases:
            return 0.0
        total = 0.0
        for book in books:
            curves = book.ledger.rows.curves[0]  # first: who is not drawn yet has no rows
            rows = [row for lease_id, lease in leases.items() if lease_id in book.ledger.leases for row in lease.rows]
            if rows:
                total += float(curves[rows].sum(axis=0).max())
        return total

    def held_by_tenant(self, books: Iterable[Book]) -> Generator[None, None, dict[str, float]]:
        """As ``held_blocks`` of every tenant that has a lease, for people; yields after each replica, where others may have a turn."""
        held = dict.fromkeys(self._leases, 0.0)
        leases: dict[str, list[tuple[int, Lease]]] = {}
        for number, of_tenant in enumerate(self._leases.values()):
            for lease in of_tenant.values():
                leases.setdefault(lease.replica, []).append((number, lease))
        for book in books:
            curves = book.ledger.rows.curves[0]  # first, as above
            here = [(number, row) for number, lease in leases.get(book.spec.name, ()) if not lease.ended for row in lease.rows]
            if here:
                numbers, rows = np.asarray(here).T
                sums = np.zeros((len(held), len(book.grid)))
                np.add.at(sums, numbers, curves[rows])
                for tenant, peak in zip(held, sums.max(axis=1).tolist(), strict=True):
                    held[tenant] += peak
            yield
        return held

    def holds_any(self, tenant: str) -> bool:
        """Whether it has a lease."""
        return tenant in self._leases

    def held_now(self, tenant: str, model: str, books: Sequence[Book]) -> float:
        """As ``held_blocks``, as of the ledgers' last change."""
        if tenant not in self._leases:
            return 0.0
        changes, held = sum(book.ledger.changes for book in books), self._held.setdefault(tenant, {})
        known = held.get(model)
        if known is None or known[0] != changes:
            known = held[model] = changes, self.held_blocks(tenant, books)
        return known[1]

    def takes(self, entry: Waiting, now_s: float) -> bool:
        """Whether its share lets ``entry`` in now; notes in it what held it back."""
        model, entry.asks_much = entry.demand.length_class.model, False
        books = self._fleet.of_model(model)
        held_by = self._bound(entry, books, now_s) if books and self.active else ""
        if books and not held_by and entry.demand.tenant in self._leases and self.room.concerns(model, books):
            held_by = "" if self._leaves_room(entry, books, now_s) else ROOM
        entry.held_by = held_by
        return not held_by

    def _leaves_room(self, entry: Waiting, books: Sequence[Book], now_s: float) -> bool:
        holds = _Held(self, entry.demand.length_class.model, books)
        if not holds.blocks(entry.demand.tenant):
            return True
        peak, usable = self._peak_blocks(entry, books[0], now_s), sum(book.spec.usable_blocks for book in books)
        return self.room.lets_in(entry, peak, usable, holds, now_s)

    def _bound(self, entry: Waiting, books: Sequence[Book], now_s: float) -> str:
        demand, tenant = entry.demand, entry.demand.tenant
        model, usable = demand.length_class.model, sum(book.spec.usable_blocks for book in books)
        policy = self.tenants.policy_of(tenant)
        held, peak = self.held_now(tenant, model, books), self._peak_blocks(entry, books[0], now_s)
        if policy.kv_share_max < 1.0 and held > 0.0 and held + peak > policy.kv_share_max * usable / self.proxies + SLACK:
            return CEILING
        floors = [one for one in self.tenants.floors if one.name != tenant]
        kept = sum(max(0.0, one.kv_share_min * usable - self.held_now(one.name, model, books)) for one in floors)
        if not kept or held + peak <= policy.kv_share_min * usable + SLACK or not any(book.ledger.occupied for book in books):
            return ""
        forecast = sum(book.peak_blocks(None, now_s) for book in books)
        return FLOOR if forecast + peak > usable - kept + SLACK else ""

    @staticmethod
    def _peak_blocks(entry: Waiting, book: Book, now_s: float) -> float:
        if not entry.peak_blocks:
            entry.peak_blocks = float(book.newcomer(entry.demand, now_s, entry.curves).curves.mean.max())
        return entry.peak_blocks

    def refusal(self, demand: Demand, books: Sequence[Book]) -> Refusal | None:
        """What exceeds the tenant's ceiling by its prompt alone: no waiting can cure it."""
        policy = self.tenants.policy_of(demand.tenant)
        if policy.kv_share_max >= 1.0 or not books:
            return None
        limit = policy.kv_share_max * sum(book.spec.usable_blocks for book in books)
        least = min(book.prompt_blocks(demand) for book in books)
        if least <= limit:
            return None
        message = f"The prompt needs {least:.0f} KV blocks; the share of the tenant {demand.tenant!r} has {limit:.0f}."
        return Refusal(
            Outcome.TENANT_SHARE, gate=CEILING, message=message, measured=least, limit=round(limit, 1), unit="blocks",
            policy_key=self.tenants.key_of(demand.tenant, CEILING),
        )  # fmt: skip


class _Held:
    """What tenants hold of the replicas of one model, for ``core.tenant_room``."""

    def __init__(self, shares: TenantShares, model: str, books: Sequence[Book]) -> None:
        self._shares, self._model, self._books = shares, model, books

    def any(self, tenant: str) -> bool:
        """Whether it holds something, of whichever model."""
        return self._shares.holds_any(tenant)

    def blocks(self, tenant: str) -> float:
        """Blocks at their forecast peak."""
        return self._shares.held_now(tenant, self._model, self._books)
