"""Which waiting request goes where now: routing by forecast headroom, EASY backfilling, pacing.

Routing. Among the replicas where a request fits it goes to the one with the most of its pool left at the forecast peak; it is bound
as late as possible. Backfilling (EASY): a head that does not fit reserves the earliest step at which it will on one replica, and what is
spare beside it from then on; others go ahead there only if they have ended by that step or fit into what is spare. Pacing
(``core.pacing``) spaces admissions while not everything fits at once.

Fails: the reservation is a forecast; when requests live longer than forecast the head waits longer, and its deadline ends that.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from proxy.core.book import Book, Verdict
from proxy.core.curves import Curves
from proxy.core.pacing import BURST_FILL_RATIO, BurstWatch
from proxy.core.router import Place, Router
from proxy.core.saturation import Binding
from proxy.core.wait_queue import Reservation, Waiting, WaitQueue
from proxy.core.warmth import Warmth

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
        if binding in {Binding.UNAVAILABLE, Binding.WEDGED}:
            return  # it does not wait for this one
        self.curves[book.spec.name] = verdict.curves
        if verdict.headroom_ratio > self.headroom_ratio or self.binding is Binding.UNAVAILABLE:
            self.binding, self.headroom_ratio = binding, verdict.headroom_ratio


class Placement:
    """Chooses among the queue's heads and the books. Holds no state but when it last looked."""

    def __init__(self, queue: WaitQueue, warmth: Warmth) -> None:
        self.queue = queue
        self.router = Router(warmth)
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
            if look_behind:
                reservation = self._reserve(head, choice, pool, now_s)
                found = self._backfill(others, choice, reservation, pool, now_s, contended=contended)
                if found is not None:
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
        """Where ``entry`` goes now, of the replicas that take it; blocked also while it waits for a warm one."""
        places: list[Place] = []
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
            places.append((book, verdict, binding))
        if all(binding is not Binding.NONE for _, _, binding in places):
            return blocked
        book, verdict, binding = place = self.router.route(entry, places, pool, now_s)
        if binding is Binding.NONE:
            return Choice(entry, book, verdict)
        waiting = Blocked()
        waiting.note(*place)
        return waiting

    def _contended(self, pool: list[Book], now_s: float) -> bool:
        """Whether running plus queued demand exceeds what the replicas hold."""
        usable = sum(book.spec.usable_blocks for book in pool)
        peaks = sum(book.peak_blocks(None, now_s) for book in pool)
        return self.queue.peak_blocks + peaks > usable

    def _paced(self, book: Book, verdict: Verdict, now_s: float, *, contended: bool) -> bool:
        if not book.ledger.leases:
            return False
        return contended or (verdict.headroom_ratio < 1.0 - BURST_FILL_RATIO and self.burst.active(now_s))

    @staticmethod
    def _reserve(head: Waiting, blocked: Blocked, pool: list[Book], now_s: float) -> Reservation | None:
        """Where and when the head is to start, and what may run beside it: where it will fit first.

        One made before stands unless the head can start earlier: found anew at each look, it would be rounded up to the grid each time
        and creep away. One whose time has come without the head fitting yet lets nobody go ahead any more.
        """
        found: Reservation | None = None
        soonest = float("inf")
        for book in pool:
            curves = blocked.curves.get(book.spec.name)
            start = None if curves is None else book.earliest_start(curves, now_s)
            if start is not None and start[0] / book.clock.rate_per_s < soonest:
                soonest = start[0] / book.clock.rate_per_s
                found = Reservation(book.spec.name, book.clock.steps + start[0], start[1])
        kept = head.reservation
        if kept is None or (found is not None and (found.replica != kept.replica or found.step < kept.step)):
            head.reservation = found
        return head.reservation

    def _backfill(
        self, others: Iterable[Waiting], head: Blocked, reservation: Reservation | None, pool: list[Book], now_s: float, *,
        contended: bool,
    ) -> Choice | None:  # fmt: skip
        """The first of ``others`` that can go without keeping the head from its reservation."""
        for entry in others:
            choice = self.choose(entry, pool, now_s, contended=contended)
            if isinstance(choice, Choice) and not self._passes(choice, head, reservation):
                kept = {*head.curves} if reservation is None else {reservation.replica}
                elsewhere = [book for book in pool if book.spec.name not in kept]
                choice = self.choose(entry, elsewhere, now_s, contended=contended)
            if isinstance(choice, Choice):
                return choice
        return None

    @staticmethod
    def _passes(choice: Choice, head: Blocked, reservation: Reservation | None) -> bool:
        """Whether it may go ahead of the head there; takes its blocks off what is spare beside the head."""
        name = choice.book.spec.name
        if reservation is None:
            return name not in head.curves  # no reservation could be made: whoever passes might push the head out for good
        if reservation.replica != name:
            return True
        beside = choice.book.blocks_beside(choice.entry.demand, choice.verdict.curves, reservation.step)
        if beside > reservation.spare_blocks:
            return False
        reservation.spare_blocks -= beside
        return True
