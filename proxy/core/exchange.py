"""What proxies tell each other now and then, apart from rows: token-time charged to tenants, and how long outputs were.

Decides nothing. *Charges* are told in virtual token-time (block-steps per weight, settled differences included), so that nobody need know
the weight of a tenant it never saw; they move the virtual times of the others' queues, which then serve a tenant as if all its requests
had come to one. Where the account of one stands that comes back, or waits at several, ``core.tenant_accounts`` says; *clocks* tell how far
anybody was charged at any proxy, where whoever comes begins while nobody waits. Ranks are compared by what all have heard of: with one's
own last charges in them, proxies would take turns for a tenant that is at several of them, and its deadlines would not count. What tenants
used of their *rates* is told beside it, in requests and tokens, under numbers that no priority has. *Completions* are told as the plain
values that the length model and the margin's feedback learn from.

Fails: between two exchanges a tenant spread over N proxies may be served up to N times as fast as it should be.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from proxy.core.demand import Demand
from proxy.core.events import Finished
from proxy.core.fleet import Fleet
from proxy.core.lease import Lease
from proxy.core.length_names import Key, leaf_name
from proxy.core.outcome import Outcome
from proxy.core.tenant_accounts import TenantAccounts, TenantKey
from proxy.core.tenant_rates import REQUESTS, TOKENS, TenantRates
from proxy.core.wait_queue import WaitQueue

__all__ = ["RATE_KEYS", "RATE_KINDS", "Completion", "Exchange", "TenantKey"]

COMPLETIONS_KEPT = 5000  # untold ones, while nobody can be told
RATE_KEYS = {REQUESTS: 1_000_001, TOKENS: 1_000_002}  # in the place of a priority
RATE_KINDS = {key: kind for kind, key in RATE_KEYS.items()}


class Completion(NamedTuple):
    """One request that ended: plain values, alike in every process."""

    replica: str
    leaf: Key  # of its class of lengths: ``survival.leaf_name``
    output_tokens: float  # of each sequence
    natural: bool
    prompt_tokens: int
    output_tokens_total: float
    completed: bool
    kv_limited: bool  # somebody waited for KV blocks of the replica meanwhile


class Exchange:
    """One gate's side. What was taken is told once."""

    def __init__(self, fleet: Fleet, queue: WaitQueue, rates: TenantRates) -> None:
        self._fleet = fleet
        self._queue = queue
        self._rates = rates
        self._completions: list[Completion] = []
        self._told: dict[TenantKey, float] = {}  # charges taken last, which some may not have heard of yet
        self.accounts = TenantAccounts(queue)
        queue.charged, rates.charged = {}, {}

    def __repr__(self) -> str:
        """Counts for people and tests."""
        return f"<Exchange completions={len(self._completions)} tenants={len(self._queue.charged or ())}>"

    # ---- ours

    def ended(self, lease: Lease, event: Finished, output_tokens: float, *, kv_limited: bool) -> None:
        """A request of ours ended with so many tokens out of all its sequences."""
        if len(self._completions) < COMPLETIONS_KEPT:
            demand = lease.demand
            self._completions.append(
                Completion(
                    lease.replica, leaf_name(demand), output_tokens / demand.sequences, event.natural,
                    demand.prompt_tokens, output_tokens, event.outcome is Outcome.COMPLETED, kv_limited,
                )
            )  # fmt: skip

    def take_completions(self) -> list[Completion]:
        """Ours since last asked."""
        taken, self._completions = self._completions, []
        return taken

    def take_charges(self) -> dict[TenantKey, float]:
        """Virtual token-time and rates that we charged since last asked; tenants for whom it came to nothing are left out."""
        taken, self._queue.charged = self._queue.charged or {}, {}
        self._told = taken
        self.accounts.told(taken)
        used, self._rates.charged = self._rates.charged or {}, {}
        taken = taken | {(RATE_KEYS[kind], tenant): amount for (kind, tenant), amount in used.items()}
        return {key: charge for key, charge in taken.items() if charge}

    def virtual_known(self, demand: Demand) -> float:
        """Virtual time of the demand's tenant as everybody knows it: without what we charged it since, in whole block-steps."""
        key = demand.priority, demand.tenant
        untold = (self._queue.charged or {}).get(key, 0.0) + self._told.get(key, 0.0)
        return float(round(self._queue.virtual(demand) - untold))

    def clocks(self) -> dict[int, float]:
        """By priority, the virtual time of whoever was served last."""
        return self._queue.clocks()

    # ---- the others'

    def charged(self, charges: Mapping[TenantKey, float], clocks: Mapping[int, float]) -> None:
        """Others have charged this since it was last told, and their clocks stand so."""
        for (priority, tenant), charge in charges.items():
            if priority in RATE_KINDS:
                self._rates.charged_elsewhere(RATE_KINDS[priority], tenant, charge, self._queue.now_s)
            else:
                self._queue.charged_elsewhere(priority, tenant, charge)
        for priority, virtual in clocks.items():
            self._queue.clock_elsewhere(priority, virtual)

    def completed(self, completions: Iterable[Completion], *, history: bool = False) -> None:
        """Requests of others ended. ``history``: before we began, so that the margins have long counted them."""
        for one in completions:
            if one.output_tokens > 0:
                self._fleet.model.learn_of(one.leaf, one.output_tokens, natural=one.natural)
            book = self._fleet.books.get(one.replica)
            if one.completed and book is not None and not history:
                book.feedback.completed(one.prompt_tokens, one.output_tokens_total, kv_limited=one.kv_limited)
