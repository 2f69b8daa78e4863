"""Which waiting request goes where now: routing by forecast headroom, EASY backfilling, pacing.

Routing. Among the replicas where a request fits it goes to the one with the most of its pool left at the forecast peak; it is bound
as late as possible. Backfilling (EASY): a head that does not fit reserves the earliest step at which it will on one replica, and what is
spare beside it from then on; others go ahead there only if they have ended by that step or fit into what is spare. Pacing
(``core.pacing``) spaces admissions while not everything fits at once.

Fails: the reservation is a forecast; when requests live longer than forecast the head waits longer, and its deadline ends that.
"""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from proxy.core.backfill import blocks_beside, earliest_start
from proxy.core.bank import Bank, BankVerdict, banks_of
from proxy.core.book import Book, Verdict
from proxy.core.curves import Curves
from proxy.core.demand import Demand
from proxy.core.pacing import BURST_FILL_RATIO, BurstWatch
from proxy.core.router import Place, Router
from proxy.core.saturation import Binding
from proxy.core.wait_queue import Reservation, Waiting, WaitQueue
from proxy.core.warmth import Warmth

LIMITED_BY_KV = frozenset({Binding.KV, Binding.PACING})
BACKFILL_S = 0.1  # after looking in vain: a few decode steps, in which little changes
RESERVED_AMONG = 4  # replicas, the nearest misses first: who misses by more starts later, and each costs several verdicts
BACKFILL_DEPTH = 16  # heads looked at behind one that does not fit: bounds a decision however long the queue is


@dataclass(frozen=True, slots=True)
class Choice:
    """A request, the replica it goes to, and what it adds there."""

    entry: Waiting
    book: Book
    verdict: Verdict


class Spot(NamedTuple):
    """One replica as a request sees it: the share of the pool it would leave at the forecast peak; ``binding`` is KV, UNAVAILABLE, or NONE
    where the other limits are still to be asked.
    """

    headroom_ratio: float
    book: Book
    binding: Binding
    look: BankVerdict
    row: int  # in its bank
    cached_tokens: float = 0.0  # of the prompt, expected in the replica's prefix cache

    def place(self, binding: Binding) -> Place:
        """With what binds, and the verdict made up."""
        return self.book, Verdict(binding, self.headroom_ratio, self.look.curves_on(self.row), self.cached_tokens), binding


@dataclass(slots=True)
class Blocked:
    """Why nobody fits a request: the limit on the replica that came nearest, its headroom, and its curves where it waits for room."""

    binding: Binding = Binding.UNAVAILABLE
    headroom_ratio: float = float("-inf")
    curves: dict[str, Curves] = field(default_factory=dict)
    headrooms: dict[str, float] = field(default_factory=dict)

    def note(self, book: Book, verdict: Verdict, binding: Binding) -> None:
        """Keep the nearest miss."""
        if binding in {Binding.UNAVAILABLE, Binding.WEDGED}:
            return  # it does not wait for this one
        self.curves[book.spec.name] = verdict.curves
        self.headrooms[book.spec.name] = verdict.headroom_ratio
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

    def at_once(self, entry: Waiting, pool: list[Book], now_s: float) -> Choice | None:
        """Where one who arrives goes without waiting: nobody else waits, or a replica must get its cache back and it is warm there."""
        if len(self.queue) and not any(book.saturation.guard.recovering for book in pool):
            return None
        choice = self.choose(entry, pool, now_s, contended=bool(len(self.queue)))
        if isinstance(choice, Blocked):
            return None
        warm = choice.book.saturation.guard.prefers(choice.verdict.cached_tokens / entry.demand.prompt_tokens)
        return choice if warm or not len(self.queue) else None

    def next_choice(self, pool: list[Book], now_s: float) -> Choice | None:
        """The next admission to make, or None when nobody can go now."""
        return next(self.choices(pool, now_s), None)

    def choices(self, pool: list[Book], now_s: float, *, look_behind: bool = True) -> Iterator[Choice]:
        """The admissions to make now, one after another, each to be booked before the next is asked for. Models do not wait for each other.

        ``look_behind`` allows to look at those behind a head that does not fit, which costs as much as some twenty decisions. Whom one
        call has passed over it does not look at again: every admission only leaves less.
        """
        look_behind = look_behind and now_s - self._backfilled_s >= BACKFILL_S
        waiting: dict[str, Blocked] = {}  # by model, of its head
        passed_over: set[str] = set()
        while (choice := self._next(pool, now_s, waiting, passed_over, look_behind=look_behind)) is not None:
            yield choice
        if look_behind:
            self._backfilled_s = now_s

    def _next(
        self, pool: list[Book], now_s: float, waiting: dict[str, Blocked], passed_over: set[str], *, look_behind: bool
    ) -> Choice | None:
        for model, (head, *others) in self._heads(pool, BACKFILL_DEPTH if look_behind else 0).items():
            if model not in waiting:
                choice = self.choose(head, pool, now_s, contended=None)
                if isinstance(choice, Choice):
                    return choice
                waiting[model] = choice
                if look_behind:
                    self._reserve(head, choice, pool, now_s)
            found = self._backfill(others, waiting[model], head.reservation, pool, now_s, passed_over)
            if found is not None:
                return found
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
        spots = self._spots(entry, pool, now_s, entry.excluded | barred)
        indifferent = self.router.is_indifferent(entry, [spot.book for spot in spots])
        if not indifferent:
            spots = self._with_cached(entry.demand, spots)
        bindings: list[Binding] = []
        for spot in spots:
            binding, book = spot.binding, spot.book
            if binding is Binding.NONE:
                binding = book.binding(entry.demand, spot.headroom_ratio, now_s, spot.cached_tokens)
                if binding is Binding.NONE and book.ledger.leases:
                    if contended is None:
                        contended = self._contended(pool, now_s)
                    binding = self._pacing(entry, spot, now_s, contended=contended)
            bindings.append(binding)
            book.binding_last = binding
            book.kv_limited = book.kv_limited or binding in LIMITED_BY_KV
            if binding is Binding.NONE and indifferent:
                return Choice(entry, book, spot.place(binding)[1])
        places = [spot.place(binding) for spot, binding in zip(spots, bindings, strict=True)]
        if Binding.NONE in bindings:
            book, verdict, binding = place = self.router.route(entry, places, pool, now_s)
            if binding is Binding.NONE:
                return Choice(entry, book, verdict)
            places = [place]
        blocked = Blocked()
        for place in places:
            blocked.note(*place)
        return blocked

    def _with_cached(self, demand: Demand, spots: list[Spot]) -> list[Spot]:
        cached = self.router.warmth.cached_tokens(demand, [spot.book.spec.name for spot in spots])
        return [spot._replace(cached_tokens=tokens) for spot, tokens in zip(spots, cached, strict=True)]

    def _spots(self, entry: Waiting, pool: list[Book], now_s: float, barred: Set[str]) -> list[Spot]:
        """The replicas of the model, the one with the most headroom first. A full pool binds, unless nothing is on it."""
        spots: list[Spot] = []
        for bank in self.banks(pool):
            if entry.demand.length_class.model not in bank.models:
                continue
            look = bank.verdict(entry.demand, now_s, entry.curves)
            usable = bank.can_serve(entry.demand)
            for index, headroom in enumerate(look.headroom_ratio.tolist()):
                book, binding = bank.books[index], Binding.NONE
                if book.spec.name in barred:
                    continue
                if not usable[index]:
                    binding = Binding.UNAVAILABLE
                elif headroom < 0.0 and book.ledger.leases and not book.saturation.wedge.wedged:
                    binding = Binding.KV
                spots.append(Spot(headroom, book, binding, look, index))
        spots.sort(key=itemgetter(0), reverse=True)
        return spots

    def _pacing(self, entry: Waiting, spot: Spot, now_s: float, *, contended: bool) -> Binding:
        paced = contended or (spot.headroom_ratio < 1.0 - BURST_FILL_RATIO and self.burst.active(now_s))
        if paced and spot.book.paced_out(entry.demand, spot.look.curves_on(spot.row), now_s):
            return Binding.PACING
        return Binding.NONE

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
        nearest = sorted(
            (book for book in pool if book.spec.name in blocked.curves), key=lambda book: -blocked.headrooms[book.spec.name]
        )
        for book in nearest[:RESERVED_AMONG]:
            start = earliest_start(book, blocked.curves[book.spec.name], now_s)
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
        self,
        others: Iterable[Waiting],
        head: Blocked,
        reservation: Reservation | None,
        pool: list[Book],
        now_s: float,
        passed_over: set[str],
    ) -> Choice | None:
        """The first of ``others`` that can go without keeping the head from its reservation."""
        for entry in others:
            if entry.demand.request_id in passed_over:
                continue
            choice = self.choose(entry, pool, now_s, contended=None)
            if isinstance(choice, Choice) and not self._passes(choice, head, reservation, now_s):
                kept = {*head.curves} if reservation is None else {reservation.replica}
                choice = self.choose(entry, pool, now_s, contended=None, barred=kept)
            if isinstance(choice, Choice):
                return choice
            passed_over.add(entry.demand.request_id)
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
