"""The replicas of one pool as the gate knows them, and the survival model they share.

Decides when a replica's book is new: first sight, changed facts (another cache size, model or version is another replica), or a new
engine epoch (counters fell, start time changed). Leases of an epoch that ended are handed back to the gate to be voided.
"""

from collections.abc import Iterator, Set
from math import ceil, inf
from typing import assert_never

from proxy.core.book import REFRESH_S_MIN, Book
from proxy.core.demand import Demand
from proxy.core.events import Observed, ReplicaChanged, ReplicaEvent, ReplicaFound, ReplicaGone
from proxy.core.feedback import Feedback
from proxy.core.grid import Grid
from proxy.core.health import SlowStart
from proxy.core.kv_shape import KvLayout
from proxy.core.ledger import Lease
from proxy.core.newcomers import Newcomer, Newcomers, Undrawn
from proxy.core.policy import Policy
from proxy.core.refresh_times import RefreshTimes
from proxy.core.replica import AWAITED_PHASES, ReplicaPhase, ReplicaSample, ReplicaSpec
from proxy.core.survival import SurvivalModel
from proxy.core.warmth import Warmth

REBUILD_S = 0.5  # how often running requests enter the survival estimate
REBUILD_COMPLETIONS = 25
REBUILD_S_MIN = 0.1  # however many completed: it goes through everybody who runs
REBUILD_S_LATE = 4.0 * REBUILD_S  # on a decision only when nothing else did for so long
REFRESH_GAP_S = 0.01  # Ticks that only refresh come no closer together

Alike = tuple[int, int, KvLayout, str]  # replicas of which forecasts are the same


def _alike(spec: ReplicaSpec) -> Alike:
    """What a fitted one learns is its own."""
    return spec.context_tokens_max, spec.block_size, spec.kv_shape.layout, spec.name if spec.kv_layout.fitted else ""


def forwardable(books: list[Book], now_s: float) -> list[Book]:
    """Where plain forwarding would send: what serves and moves, else what is worth waiting for, else whatever is not being drained.

    One that is coming back is spared while others serve.
    """
    kept = [book for book in books if book.phase is not ReplicaPhase.DRAINING]
    serving = [book for book in kept if book.phase is ReplicaPhase.SERVING and not book.saturation.wedge.wedged]
    return (
        [book for book in serving if not book.spared(now_s)]
        or serving
        or [book for book in kept if book.phase in AWAITED_PHASES]
        or kept
    )


class Fleet:
    """Books by replica name. Every method is told the time."""

    def __init__(self, policy: Policy, now_s: float) -> None:
        self.policy = policy
        self.model = SurvivalModel()
        self.books: dict[str, Book] = {}
        self.warmth = Warmth()
        self.preemptions_total = 0
        self.epochs_total = 0
        self._pool: list[Book] = []
        self._by_model: dict[str, list[Book]] = {}
        self._observed: set[str] = set()  # models that a replica serves which is only observed
        self._times = RefreshTimes()
        self._late_s = now_s
        self._newcomers: dict[Alike, Newcomers] = {}
        self._refreshed_s = now_s
        self._rebuilt_s = now_s
        self._rebuilt_completions = 0

    def __repr__(self) -> str:
        """State for people and tests."""
        return f"<Fleet {list(self.books.values())!r}>"

    def __iter__(self) -> Iterator[Book]:
        """Every book."""
        return iter(self.books.values())

    def adopt(self, policy: Policy) -> None:
        """Go by this policy from now on; what was learned of margins stays, within its limits."""
        self.policy, budget = policy, policy.budget
        for book in self:
            book.stale_s = policy.scrape.stale_s
            book.feedback.bound(target_ratio=budget.preemptions_per_1000 / 1000.0, z_min=budget.z_min, z_max=budget.z_max)

    def of_model(self, model: str) -> list[Book]:
        """Books of the replicas that serve ``model``; not to be changed."""
        found = self._by_model.get(model)
        if found is None:
            found = [book for book in self._pool if model in book.spec.models]
            if found:  # any name may be asked for
                self._by_model[model] = found
        return found

    def forwardable(self, model: str, now_s: float) -> list[Book]:
        """Those of them that plain forwarding would send to."""
        return forwardable(self.of_model(model), now_s)

    def enforced(self, model: str) -> bool:
        """Whether no replica of ``model`` is only observed."""
        return model not in self._observed

    def server_of(self, replica: str) -> str:
        """What fails when the replica does: a data-parallel engine's server, else itself."""
        book = self.books.get(replica)
        return replica if book is None else book.spec.server or replica

    # ---- leases

    def add(self, lease: Lease, newcomer: Newcomer | Undrawn | None = None) -> None:
        """Book a lease on its replica, with the forecast it was admitted with, if any."""
        book = self.books[lease.replica]
        book.add(lease, newcomer)
        self.warmth.placed(lease)
        if len(book.ledger.leases) == 1:
            self._times.changed(lease.replica)

    def remove(self, book: Book, lease: Lease, now_s: float) -> None:
        """A lease on ``book`` ended."""
        book.remove(lease.lease_id, now_s)
        self.warmth.ended(lease)
        if not book.ledger.leases:
            self._times.changed(book.spec.name)

    # ---- forecasts

    def fresh(self, now_s: float) -> list[Book]:
        """Every book, for a decision: its forecast is what the last Ticks left, made anew only where no Tick came for long."""
        if now_s >= self._late_s:
            for book in self._pool:
                if book.late_s() <= now_s:
                    self._refresh(book, now_s)
            self._late_s = min((book.late_s() for book in self._pool), default=inf)
            self._late_s = min(self._late_s, now_s + REFRESH_S_MIN)  # an empty one may have got a lease meanwhile
        return self._pool

    def refresh_due(self, now_s: float) -> None:
        """Make forecasts anew that are due, the oldest first, and of many replicas only a share, so that no Tick takes long."""
        due = self._times.due(now_s)
        if due:
            share = ceil(len(self._pool) * REFRESH_GAP_S / REFRESH_S_MIN)
            for book in due[:share]:
                self._refresh(book, now_s)
            self._refreshed_s = now_s

    def draw(self, book: Book, now_s: float) -> None:
        """Its rows are about to be read: whoever is undrawn is drawn with everybody, at the cost of a few alone."""
        if book.ledger.undrawn:
            self._refresh(book, now_s)

    def _refresh(self, book: Book, now_s: float) -> None:
        book.refresh(now_s)
        self._times.changed(book.spec.name)

    def refresh_due_s_next(self) -> float:
        """When the next Tick has something to refresh; infinite while nothing runs anywhere."""
        return max(self._times.first()[0], self._refreshed_s + REFRESH_GAP_S)

    def rate_per_s_max(self) -> float:
        """Steps per second of the fastest replica; 0 where there is none."""
        return self._times.first()[1]

    def could_take(self, demand: Demand, excluded: Set[str]) -> bool:
        """Whether any replica not excluded could ever serve the demand."""
        return any(
            book.phase in AWAITED_PHASES and not book.spec.among(excluded) and book.fits_alone(demand)
            for book in self.of_model(demand.length_class.model)
        )

    def could_retry(self, demand: Demand, failed: str) -> bool:
        """Whether one that ``failed`` has failed may wait: a replica is worth waiting for, and ``failed`` is not all there is."""
        books = [
            book
            for book in self.of_model(demand.length_class.model)
            if book.phase is not ReplicaPhase.DRAINING and not book.spec.among(demand.kept_from) and book.fits_alone(demand)
        ]
        return any(book.phase in AWAITED_PHASES for book in books) and any(not book.spec.among({failed}) for book in books)

    def told(self, event: ReplicaEvent, now_s: float) -> str | None:
        """Take in what happened to a replica. Returns its name where its engine is over, so that its leases are void."""
        match event:
            case Observed(sample):
                return sample.replica if self.observed(sample, now_s) else None
            case ReplicaFound(spec, phase, slow_start):
                return spec.name if self.found(spec, now_s, phase, slow_start) else None
            case ReplicaChanged(replica, phase, slow_start):
                self.changed(replica, phase, slow_start)
            case ReplicaGone(replica):
                return replica if self.gone(replica) else None
            case _:
                assert_never(event)
        return None

    def found(
        self, spec: ReplicaSpec, now_s: float, phase: ReplicaPhase = ReplicaPhase.SERVING, slow_start: SlowStart | None = None
    ) -> bool:
        """A replica was probed. True when an earlier book of that name is void."""
        old = self.books.get(spec.name)
        if old is not None and old.spec == spec:
            self.changed(spec.name, phase, slow_start)
            return False
        budget = self.policy.budget
        feedback = Feedback(target_ratio=budget.preemptions_per_1000 / 1000.0, z_min=budget.z_min, z_max=budget.z_max)
        if old is not None:
            feedback = old.feedback  # what was learned of its margin holds for the same machine
            self.epochs_total += 1
        self.warmth.found(spec.name, usable_blocks=spec.usable_blocks, block_size=spec.block_size, caching=spec.prefix_caching)
        alike = _alike(spec)
        if alike not in self._newcomers:
            self._newcomers[alike] = Newcomers(Grid(spec.context_tokens_max), self.model, spec.kv_shape)
        self.books[spec.name] = Book(
            spec, self.model, feedback, stale_s=self.policy.scrape.stale_s, now_s=now_s, newcomers=self._newcomers[alike]
        )
        self.changed(spec.name, phase, slow_start)
        self._regroup()
        return old is not None

    def gone(self, replica: str) -> bool:
        """A replica is none of ours any more. True when its book is void, False where it had none."""
        if self.books.pop(replica, None) is None:
            return False
        self.warmth.gone(replica)
        self._regroup()
        kept = {_alike(book.spec) for book in self._pool}
        self._newcomers = {alike: newcomers for alike, newcomers in self._newcomers.items() if alike in kept}
        return True

    def _regroup(self) -> None:
        """The books are others than before."""
        self._pool = list(self.books.values())
        self._times = RefreshTimes(self._pool)
        self._by_model.clear()
        self._observed = {model for book in self._pool if not book.spec.enforced for model in book.spec.models}

    def changed(self, replica: str, phase: ReplicaPhase, slow_start: SlowStart | None = None) -> None:
        """A replica went to another phase; an unknown one is ignored."""
        if replica in self.books:
            self.books[replica].phase, self.books[replica].slow_start = phase, slow_start

    def observed(self, sample: ReplicaSample, now_s: float) -> bool:
        """Take in a scrape. True when the engine restarted and its leases are void."""
        book = self.books.get(sample.replica)
        if book is None:
            return False
        if sample.new_epoch:
            book.new_epoch()
            self.restarted(sample.replica)
        self.warmth.observed(sample)
        self.preemptions_total += book.observe(sample, now_s)
        self._times.changed(sample.replica)
        return sample.new_epoch

    def restarted(self, replica: str) -> None:
        """An engine began anew, and its book with it."""
        self.epochs_total += 1
        self.warmth.new_epoch(replica)

    def changed_load(self, replica: str) -> None:
        """Other proxies came to have something where nobody had, or the other way round: its refresh is due by another time."""
        self._times.changed(replica)

    def rebuild_when_due(self, now_s: float, *, deciding: bool = False) -> bool:
        """Bring running requests into the survival estimate now and then; True when it did. ``deciding`` puts it off, but not for ever."""
        waited_s = now_s - self._rebuilt_s
        if deciding and waited_s < REBUILD_S_LATE:
            return False
        enough = self.model.completions_total - self._rebuilt_completions >= REBUILD_COMPLETIONS
        if waited_s < (REBUILD_S_MIN if enough else REBUILD_S):
            return False
        self._rebuilt_s, self._rebuilt_completions = now_s, self.model.completions_total
        self.model.rebuild([book.ledger.running() for book in self._pool])
        for newcomers in self._newcomers.values():
            newcomers.renew()
        return True
