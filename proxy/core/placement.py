"""Which waiting request goes where now: routing by forecast headroom, EASY backfilling, pacing.

Routing. Among the replicas where a request fits it goes to the one with the most of its pool left at the forecast peak; it is bound
as late as possible. Backfilling (EASY): a head that does not fit reserves the earliest grid point at which it will on one replica;
others go ahead only if with them the head still fits there from then on. Pacing (``core.pacing``) spaces admissions while not everything
fits at once.

Fails: the reservation is a forecast; when requests live longer than forecast the head waits longer, and its deadline ends that.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from proxy.core.book import Book, Verdict
from proxy.core.curves import Curves
from proxy.core.pacing import BURST_FILL_RATIO, BurstWatch
from proxy.core.saturation import Binding
from proxy.core.wait_queue import Waiting, WaitQueue

BACKFILL_S = 0.1  # after looking in vain: a few decode steps, in which little changes
BACKFILL_DEPTH = 16  # heads looked at behind one that does not fit: bounds a decision however long the queue is


@dataclass(frozen=True, slots=True)
class Choice:
    """A request, the replica it goes to, and what it adds there."""

    entry: Waiting
    book: Book
    verdict: Verdict


@dataclass(slots=True)
class Blocked:
    """Why nobody fits a request: the limit on the replica that came nearest, its headroom, and its curves where it waits for room."""

    binding: Binding = Binding.UNAVAILABLE
    headroom_ratio: float = float("-inf")
    curves: dict[str, Curves] = field(default_factory=dict)

    def note(self, book: Book, verdict: Verdict, binding: Binding) -> None:
        """Keep the nearest miss."""
        if binding is Binding.UNAVAILABLE:
            return  # it does not wait for this one
        self.curves[book.spec.name] = verdict.curves
        if verdict.headroom_ratio > self.headroom_ratio or self.binding is Binding.UNAVAILABLE:
            self.binding, self.headroom_ratio = binding, verdict.headroom_ratio


class Placement:
    """Chooses among the queue's heads and the books. Holds no state but when it last looked."""

    def __init__(self, queue: WaitQueue) -> None:
        self.queue = queue
        self.burst = BurstWatch()
        self._backfilled_s = float("-inf")

    def next_choice(self, books: Iterable[Book], now_s: float) -> Choice | None:
        """The next admission to make, or None when nobody can go now. Models do not wait for each other."""
        pool = list(books)
        contended = self._contended(pool, now_s)
        look_behind = now_s - self._backfilled_s >= BACKFILL_S
        for head, *others in self._heads(pool).values():
            choice = self.choose(head, pool, now_s, contended=contended)
            if isinstance(choice, Choice):
                return choice
            if look_behind and (found := self._backfill(others, choice, pool, now_s, contended=contended)) is not None:
                return found
        if look_behind:
            self._backfilled_s = now_s
        return None

    def _heads(self, pool: list[Book]) -> dict[str, list[Waiting]]:
        """The first of the queue by model, ``BACKFILL_DEPTH`` and one of each at most."""
        models = {model for book in pool for model in book.spec.models}
        heads: dict[str, list[Waiting]] = {}
        full = 0
        for entry in self.queue.order():
            line = heads.setdefault(entry.demand.length_class.model, [])
            if len(line) <= BACKFILL_DEPTH:
                line.append(entry)
                full += len(line) > BACKFILL_DEPTH
                if full >= len(models):
                    break
        return heads

    def choose(self, entry: Waiting, pool: Iterable[Book], now_s: float, *, contended: bool) -> Choice | Blocked:
        """The replica with the most headroom among those that take ``entry`` now."""
        best: Choice | None = None
        blocked = Blocked()
        for book in pool:
            name = book.spec.name
            if name in entry.excluded or entry.demand.length_class.model not in book.spec.models:
                continue
            verdict = book.verdict(entry.demand, now_s, entry.curves)
            binding = verdict.binding
            if verdict.fits and self._paced(book, verdict, now_s, contended=contended) and book.paced_out(entry.demand, verdict):
                binding = Binding.PACING
            book.binding_last = binding
            book.kv_limited = book.kv_limited or binding in {Binding.KV, Binding.PACING}
            if binding is not Binding.NONE:
                blocked.note(book, verdict, binding)
            elif best is None or verdict.headroom_ratio > best.verdict.headroom_ratio:
                best = Choice(entry, book, verdict)
        return blocked if best is None else best

    def _contended(self, pool: list[Book], now_s: float) -> bool:
        """Whether running plus queued demand exceeds what the replicas hold."""
        usable = sum(book.spec.usable_blocks for book in pool)
        peaks = sum(book.peak_blocks(None, now_s) for book in pool)
        return self.queue.peak_blocks + peaks > usable

    def _paced(self, book: Book, verdict: Verdict, now_s: float, *, contended: bool) -> bool:
        if not book.ledger.leases:
            return False
        return contended or (verdict.headroom_ratio < 1.0 - BURST_FILL_RATIO and self.burst.active(now_s))

    def _backfill(
        self, others: Iterable[Waiting], head: Blocked, pool: list[Book], now_s: float, *, contended: bool
    ) -> Choice | None:
        """The first of ``others`` that can go without keeping the head from its reservation."""
        reserved: tuple[Book, int] | None = None
        soonest = float("inf")
        for book in pool:
            curves = head.curves.get(book.spec.name)
            index = None if curves is None else book.earliest_start(curves, now_s)
            if index is not None and book.grid.starts[index] / book.clock.rate_per_s < soonest:
                reserved, soonest = (book, index), float(book.grid.starts[index]) / book.clock.rate_per_s
        for entry in others:
            choice = self.choose(entry, pool, now_s, contended=contended)
            if isinstance(choice, Blocked):
                continue
            if reserved is None and choice.book.spec.name in head.curves:
                continue  # no reservation could be made: whoever passes might push the head out for good
            if reserved is not None and choice.book is reserved[0]:
                curves = head.curves[choice.book.spec.name]
                if choice.book.delays(curves, reserved[1], choice.verdict.curves, now_s):
                    continue
            return choice
        return None
