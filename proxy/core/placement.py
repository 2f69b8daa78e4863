"""Which waiting request goes where now: routing by forecast headroom, EASY backfilling, pacing.

Routing. Among the replicas where a request fits it goes to the one with the most of its pool left at the forecast peak; it is bound
as late as possible. Backfilling (EASY): a head that does not fit reserves the earliest step at which it will on one replica, and what is
spare beside it from then on; others go ahead there only if they have ended by that step or fit into what is spare. Pacing
(``core.pacing``) spaces admissions while not everything fits at once.

Fails: the reservation is a forecast; when requests live longer than forecast the head waits longer, and its deadline ends that.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from proxy.core.backfill import blocks_beside, earliest_start
from proxy.core.bank import Bank, banks_of
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
    """Chooses among the queue's heads and the books. Holds no state but when it last looked, and the pool grouped."""

    def __init__(self, queue: WaitQueue, warmth: Warmth) -> None:
        self.queue = queue
        self.router = Router(warmth)
        self.burst = BurstWatch()
        self._backfilled_s = float("-inf")
        self._pool: list[Book] = []
        self._banks: list[Bank] = []

    def banks(self, pool: list[Book]) -> list[Bank]:
        """The pool in groups of equal replicas, kept for as long as it has the same books."""
        if pool is not self._pool and pool != self._pool:
            self._pool, self._banks = list(pool), banks_of(pool)
        return self._banks

    def own_curves(self, entry: Waiting, pool: list[Book], now_s: float) -> Curves:
        """The forecast of a request on the model's first replica, nothing shared."""
        model = entry.demand.length_class.model
        bank = next(bank for bank in self.banks(pool) if model in bank.models)
        return bank.own_curves(entry.demand, now_s, entry.curves)[0]

    def next_choice(self, pool: list[Book], now_s: float, *, look_behind: bool = True) -> Choice | None:
        """The next admission to make, or None when nobody can go now. Models do not wait for each other.

        ``look_behind`` allows to look at those behind a head that does not fit, which costs as much as some twenty decisions.
        """
        look_behind = look_behind and now_s - self._backfilled_s >= BACKFILL_S
        for head, *others in self._heads(pool, BACKFILL_DEPTH if look_behind else 0).values():
            choice = self.choose(head, pool, now_s, contended=None)
            if isinstance(choice, Choice):
                return choice
            if look_behind:
                reservation = self._reserve(head, choice, pool, now_s)
                found = self._backfill(others, choice, reservation, pool, now_s)
                if found is not None:
                    return found
        if look_behind:
            self._backfilled_s = now_s
        return None

    def _heads(self, pool: list[Book], behind: int) -> dict[str, list[Waiting]]:
        """The first of the queue by model, and ``behind`` more of each at most."""
        models = {model for bank in self.banks(pool) for model in bank.models}
        heads: dict[str, list[Waiting]] = {}
        full = 0
        for entry in self.queue.order():
            line = heads.setdefault(entry.demand.length_class.model, [])
            if len(line) <= behind:
                line.append(entry)
                full += len(line) > behind
                if full >= len(models):
                    break
        return heads

    def choose(
        self, entry: Waiting, pool: list[Book], now_s: float, *, contended: bool | None, barred: Set[str] = frozenset()
    ) -> Choice | Blocked:
        """Where ``entry`` goes now, of the replicas that take it; blocked also while it waits for a warm one.

        ``barred`` replicas are left out; ``contended`` is found out where it is None. Where routing is indifferent, what binds
        besides KV is asked only of the replicas with the most headroom, until one takes the request.
        """
        places, blocked, roomy = self._looked_at(entry, pool, now_s, entry.excluded | barred)
        indifferent = self.router.is_indifferent(entry, [book for book, _, _ in places])
        if not indifferent:
            places = self.router.with_cached(entry.demand, places)
        for index in roomy:
            book, verdict, _ = places[index]
            binding = book.binding(entry.demand, verdict.headroom_ratio, now_s, verdict.cached_tokens)
            if binding is Binding.NONE and book.ledger.leases:
                if contended is None:
                    contended = self._contended(pool, now_s)
                paced = contended or (verdict.headroom_ratio < 1.0 - BURST_FILL_RATIO and self.burst.active(now_s))
                if paced and book.paced_out(entry.demand, verdict.curves, now_s):
                    binding = Binding.PACING
            places[index] = book, verdict, binding
            self._note(blocked, *places[index])
            if binding is Binding.NONE and indifferent:
                return Choice(entry, book, verdict)
        if all(binding is not Binding.NONE for _, _, binding in places):
            return blocked
        book, verdict, binding = place = self.router.route(entry, places, pool, now_s)
        if binding is Binding.NONE:
            return Choice(entry, book, verdict)
        waiting = Blocked()
        waiting.note(*place)
        return waiting

    def _looked_at(
        self, entry: Waiting, pool: list[Book], now_s: float, barred: Set[str]
    ) -> tuple[list[Place], Blocked, list[int]]:
        """The replicas of the model with what the forecast says, and which of them are to be asked what else binds: those whose pool has
        room, or that are empty, the one with the most headroom first. The others bind already.
        """
        places: list[Place] = []
        roomy: list[int] = []
        blocked = Blocked()
        for bank in self.banks(pool):
            if entry.demand.length_class.model not in bank.models:
                continue
            looked = bank.verdict(entry.demand, now_s, entry.curves)
            usable = bank.can_serve(entry.demand)
            for index, headroom in enumerate(looked.headroom_ratio.tolist()):
                book = bank.books[index]
                if book.spec.name in barred:
                    continue
                binding = Binding.KV if usable[index] else Binding.UNAVAILABLE
                verdict = Verdict(binding, headroom, looked.curves_on(index))
                if usable[index] and (headroom >= 0.0 or not book.ledger.leases or book.saturation.wedge.wedged):
                    roomy.append(len(places))
                else:
                    self._note(blocked, book, verdict, binding)
                places.append((book, verdict, binding))
        return places, blocked, sorted(roomy, key=lambda index: -places[index][1].headroom_ratio)

    @staticmethod
    def _note(blocked: Blocked, book: Book, verdict: Verdict, binding: Binding) -> None:
        book.binding_last = binding
        book.kv_limited = book.kv_limited or binding in {Binding.KV, Binding.PACING}
        if binding is not Binding.NONE:
            blocked.note(book, verdict, binding)

    def _contended(self, pool: list[Book], now_s: float) -> bool:
        """Whether running plus queued demand exceeds what the replicas hold."""
        usable = sum(book.spec.usable_blocks for book in pool)
        peaks = sum(float(bank.peaks(now_s).sum()) for bank in self.banks(pool))
        return self.queue.peak_blocks + peaks > usable

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
            start = None if curves is None else earliest_start(book, curves, now_s)
            if start is None:
                continue
            wait_s = (start[0] - book.steps_now(now_s)) / book.clock.rate_per_s
            if wait_s < soonest:
                soonest = wait_s
                found = Reservation(book.spec.name, *start)
        kept = head.reservation
        if kept is None or (found is not None and (found.replica != kept.replica or found.step < kept.step)):
            head.reservation = found
        return head.reservation

    def _backfill(
        self, others: Iterable[Waiting], head: Blocked, reservation: Reservation | None, pool: list[Book], now_s: float
    ) -> Choice | None:
        """The first of ``others`` that can go without keeping the head from its reservation."""
        for entry in others:
            choice = self.choose(entry, pool, now_s, contended=None)
            if isinstance(choice, Choice) and not self._passes(choice, head, reservation, now_s):
                kept = {*head.curves} if reservation is None else {reservation.replica}
                choice = self.choose(entry, pool, now_s, contended=None, barred=kept)
            if isinstance(choice, Choice):
                return choice
        return None

    @staticmethod
    def _passes(choice: Choice, head: Blocked, reservation: Reservation | None, now_s: float) -> bool:
        """Whether it may go ahead of the head there; takes its blocks off what is spare beside the head."""
        name = choice.book.spec.name
        if reservation is None:
            return name not in head.curves  # no reservation could be made: whoever passes might push the head out for good
        if reservation.replica != name:
            return True
        beside = blocks_beside(choice.book, choice.entry.demand, choice.verdict.curves, reservation.step, now_s)
        if beside > reservation.spare_blocks:
            return False
        reservation.spare_blocks -= beside
        return True
