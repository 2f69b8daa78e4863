"""The replicas of one pool as the gate knows them, and the survival model they share.

Decides when a replica's book is new: first sight, changed facts (another cache size, model or version is another replica), or a new
engine epoch (counters fell, start time changed). Leases of an epoch that ended are handed back to the gate to be voided.
"""

from collections.abc import Iterator

from proxy.core.book import Book, ReplicaSpec
from proxy.core.demand import Demand
from proxy.core.feedback import Feedback
from proxy.core.policy import Policy
from proxy.core.replica import ReplicaPhase, ReplicaSample
from proxy.core.survival import SurvivalModel
from proxy.core.warmth import Warmth

REBUILD_S = 0.5  # how often running requests enter the survival estimate
REBUILD_COMPLETIONS = 25


class Fleet:
    """Books by replica name. Every method is told the time."""

    def __init__(self, policy: Policy, now_s: float) -> None:
        self.policy = policy
        self.model = SurvivalModel()
        self.books: dict[str, Book] = {}
        self.warmth = Warmth()
        self.preemptions_total = 0
        self.epochs_total = 0
        self._rebuilt_s = now_s
        self._rebuilt_completions = 0

    def __repr__(self) -> str:
        """State for people and tests."""
        return f"<Fleet {list(self.books.values())!r}>"

    def __iter__(self) -> Iterator[Book]:
        """Every book."""
        return iter(self.books.values())

    def of_model(self, model: str) -> list[Book]:
        """Books of the replicas that serve ``model``."""
        return [book for book in self.books.values() if model in book.spec.models]

    def fresh(self, now_s: float) -> list[Book]:
        """Every book, its forecast moved to now."""
        for book in self.books.values():
            book.refresh(now_s)
        return list(self.books.values())

    def could_take(self, demand: Demand, excluded: set[str]) -> bool:
        """Whether any replica not excluded could ever serve the demand."""
        return any(
            book.phase is ReplicaPhase.SERVING and book.spec.name not in excluded and book.fits_alone(demand)
            for book in self.of_model(demand.length_class.model)
        )

    def found(self, spec: ReplicaSpec, now_s: float) -> bool:
        """A replica was probed. True when an earlier book of that name is void."""
        old = self.books.get(spec.name)
        if old is not None and old.spec == spec:
            old.phase = ReplicaPhase.SERVING
            return False
        budget = self.policy.budget
        feedback = Feedback(target_ratio=budget.preemptions_per_1000 / 1000.0, z_min=budget.z_min, z_max=budget.z_max)
        if old is not None:
            feedback = old.feedback  # what was learned of its margin holds for the same machine
            self.epochs_total += 1
        self.warmth.found(spec.name, usable_blocks=spec.usable_blocks, block_size=spec.block_size, caching=spec.prefix_caching)
        self.books[spec.name] = Book(spec, self.model, feedback, stale_s=self.policy.scrape.stale_s, now_s=now_s)
        return old is not None

    def changed(self, replica: str, phase: ReplicaPhase) -> None:
        """A replica went to another phase; an unknown one is ignored."""
        if replica in self.books:
            self.books[replica].phase = phase

    def observed(self, sample: ReplicaSample, now_s: float) -> bool:
        """Take in a scrape. True when the engine restarted and its leases are void."""
        book = self.books.get(sample.replica)
        if book is None:
            return False
        if sample.new_epoch:
            self.epochs_total += 1
            book.new_epoch()
            self.warmth.new_epoch(sample.replica)
        self.warmth.observed(sample)
        self.preemptions_total += book.observe(sample, now_s)
        return sample.new_epoch

    def rebuild_when_due(self, now_s: float) -> bool:
        """Bring running requests into the survival estimate now and then; True when it did."""
        due = self.model.completions_total - self._rebuilt_completions >= REBUILD_COMPLETIONS
        if due or now_s - self._rebuilt_s >= REBUILD_S:
            self._rebuilt_s, self._rebuilt_completions = now_s, self.model.completions_total
            self.model.rebuild(pair for book in self.books.values() for pair in book.ledger.running())
            return True
        return False
