"""How many replicas the load of a pool asks for: for autoscalers, which cannot go by the engines' queues, since kvgate keeps them empty.

A *pool* is the replicas that serve the same model first; its name is that model's. Of what one proxy has, in blocks,

    running   sum over replicas of the peak of the expected demand of its own leases
    queued    sum of the forecast peaks of those that wait
    foreign   what the engines hold that no proxy explains (the bias), counted by the one proxy that scrapes the replica
    budget    mean over the pool's servers of usable blocks less the margin at the forecast peak
    wanted    the larger of  (running + queued + foreign) / budget  and the same of sequences over seats, where seats are known

``wanted`` is this proxy's share, a fraction: nothing is in two proxies' shares, so their sum is the pool's. It is the size at which
everybody who runs or waits would run at once.

Regimes. Idle: 0. Steady and not limited: how full the pool is, in replicas. A queue: above the number there is, by what waits. Mode
``off`` or a tripped guard: no leases, so all that the engines hold counts as foreign.

Fails: it sees KV and seats, not TTFT and TPOT targets, for which no number of waiting requests tells how many replicas would do; a pool
that has shrunk to no replica at all admits nobody, so nobody waits, and it reads 0; where no engine tells its usage and the mode is
``off`` it reads 0 as well. Engines of one data-parallel server count as one replica.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from proxy.core.book import Book
from proxy.core.queue_census import Wanted


@dataclass(slots=True)
class PoolDemand:
    """One pool as one proxy has it. Blocks; ``servers`` are the names of its replicas."""

    pool: str
    servers: set[str]
    running_blocks: float = 0.0
    queued_blocks: float = 0.0
    foreign_blocks: float = 0.0
    budget_blocks_total: float = 0.0
    sequences: float = 0.0
    seats_total: float | None = 0.0  # None: of one of them it is not known

    @property
    def budget_blocks(self) -> float:
        """What a replica of average size can take."""
        return max(1.0, self.budget_blocks_total / len(self.servers))

    @property
    def replicas_wanted(self) -> float:
        """This proxy's share of the replicas that the load asks for."""
        of_blocks = (self.running_blocks + self.queued_blocks + self.foreign_blocks) / self.budget_blocks
        if not self.seats_total:
            return of_blocks
        return max(of_blocks, self.sequences * len(self.servers) / self.seats_total)


def pool_of(book: Book) -> str:
    """The name of its pool; "" where it serves nothing."""
    return book.spec.models[0] if book.spec.models else ""


class PoolSizes:
    """Adds up replica by replica, so that it may be done a few at a time."""

    def __init__(self, now_s: float, counts_foreign: Callable[[str], bool]) -> None:
        self._now_s = now_s
        self._counts_foreign = counts_foreign
        self._pools: dict[str, PoolDemand] = {}
        self._pool_of_model: dict[str, str] = {}

    def add(self, book: Book, margin_blocks: float) -> None:
        """Count one replica, with the margin at its forecast peak."""
        name, spec, ledger = pool_of(book), book.spec, book.ledger
        if not name:
            return
        pool = self._pools.setdefault(name, PoolDemand(name, set()))
        for model in spec.models:
            self._pool_of_model.setdefault(model, name)
        pool.servers.add(spec.server or spec.name)
        pool.budget_blocks_total += max(0.0, spec.usable_blocks - margin_blocks)
        pool.running_blocks += max(0.0, float(ledger.own()[0].max())) if ledger.leases else 0.0
        pool.sequences += ledger.sequences
        if self._counts_foreign(spec.name):
            pool.foreign_blocks += book.reconciler.bias_blocks
            pool.sequences += book.saturation.foreign_sequences
        seats = book.saturation.seats(self._now_s)
        pool.seats_total = None if seats is None or pool.seats_total is None else pool.seats_total + seats

    def queued(self, wanted_by_model: Mapping[str, Wanted]) -> None:
        """Count those that wait; to be called after the replicas were added."""
        for model, wanted in wanted_by_model.items():
            pool = self._pools.get(self._pool_of_model.get(model, ""))
            if pool is not None:
                pool.queued_blocks += wanted.peak_blocks
                pool.sequences += wanted.sequences

    def demands(self) -> Iterable[PoolDemand]:
        """Every pool."""
        return self._pools.values()
