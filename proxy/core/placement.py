"""Which waiting request goes where now: routing by forecast headroom, EASY backfilling, pacing.

Routing. Among the replicas where a request fits it goes to the one with the most of its pool left at the forecast peak; it is bound
as late as possible. Where nothing else counts, the roomiest by its peak without the request is asked first, and mostly takes it; only
when it does not are all of them judged.

Backfilling (EASY): a head that does not fit reserves the earliest step at which it will on one replica, and what is spare beside it
from then on; others go ahead there only if they have ended by that step or fit into what is spare. Pacing (``core.pacing``) spaces
admissions while not everything fits at once.

Fails: the reservation is a forecast; when requests live longer than forecast the head waits longer, and its deadline ends that.
"""

from collections.abc import Iterable, Iterator, Set
from functools import partial
from operator import attrgetter

from proxy.core.backfill import blocks_beside, earliest_start
from proxy.core.bank import Bank, banks_of
from proxy.core.book import Book
from proxy.core.choice import Blocked, Choice, Crowd, looks_at, spots_of
from proxy.core.curves import Curves
from proxy.core.pacing import BURST_FILL_RATIO, BurstWatch
from proxy.core.refusals import Refusals
from proxy.core.replica import ReplicaPhase
from proxy.core.roomy import AGAIN_S, roomy_place
from proxy.core.router import Place, Router
from proxy.core.saturation import Binding
from proxy.core.stuck import StuckHeads
from proxy.core.verdict import Verdict
from proxy.core.wait_queue import Reservation, Waiting, WaitQueue
from proxy.core.warmth import Warmth

BACKFILL_S = 0.1  # after looking in vain: a few decode steps, in which little changes
RESERVED_AMONG = 4  # replicas, the nearest misses first: who misses by more starts later, and each costs several verdicts
ROOM = attrgetter("room_ratio")
BACKFILL_DEPTH = 16  # heads looked at behind one that does not fit: bounds a decision however long the queue is


class Placement:
    """Chooses among the queue's heads and the books. Holds no state but when it last looked, and the pool grouped."""

    def __init__(self, queue: WaitQueue, warmth: Warmth) -> None:
        self.queue = queue
        self.router = Router(warmth)
        self.refusals = Refusals()
        self.burst = BurstWatch()
        self._backfilled_s = self._cramped_s = float("-inf")  # when it was last looked in vain: behind a head, for much room
        self._pool: list[Book] = []
        self._banks: list[Bank] = []
        self._by_model: dict[str, list[Book]] = {}
        self.stuck = StuckHeads(queue, self.burst, warmth)

    def banks(self, pool: list[Book]) -> list[Bank]:
        """The pool in groups of equal replicas, kept for as long as it has the same books."""
        if pool is not self._pool and pool != self._pool:
            self._pool, self._banks = list(pool), banks_of(pool)
            self._by_model.clear()
            self.stuck.forget()
        return self._banks

    def _books(self, pool: list[Book], model: str) -> list[Book]:
        """Those of the pool that serve ``model``."""
        self.banks(pool)
        found = self._by_model.get(model)
        if found is None:
            found = [book for book in pool if model in book.spec.models]
            if found:  # any name may be asked for
                self._by_model[model] = found
        return found

    def at_once(self, entry: Waiting, pool: list[Book], now_s: float) -> Choice | None:
        """Where one who arrives goes without waiting: nobody else waits, or a replica must get its cache back and it is warm there."""
        if self.queue.requests and not any(book.saturation.guard.recovering for book in pool):
            return None
        choice = self._roomy(entry, pool, now_s) or self.choose(entry, pool, now_s, contended=bool(len(self.queue)))
        if isinstance(choice, Blocked):
            entry.considered.held = looks_at(choice.places, choice.standings)
            return None
        warm = choice.book.saturation.guard.prefers(choice.verdict.cached_tokens / entry.demand.prompt_tokens)
        return choice if warm or not self.queue.requests else None

    def _roomy(self, entry: Waiting, pool: list[Book], now_s: float) -> Choice | None:
        """The choice where there is so much room that no curve need be drawn (``core.roomy``)."""
        if self.queue.requests or self.queue.takes is not None or self.refusals or 0.0 <= now_s - self._cramped_s < AGAIN_S:
            return None
        books = self._books(pool, entry.demand.length_class.model)
        place = roomy_place(entry, books, self.router, now_s, burst=self.burst.active(now_s, entry.demand.tenant))
        if place is None:
            self._cramped_s = now_s
            return None
        self._note(place[0], Binding.NONE)
        return Choice(entry, *place[:2])

    def choices(self, pool: list[Book], now_s: float, *, look_behind: bool = True) -> Iterator[Choice]:
        """The admissions to make now, one after another, each to be booked before the next is asked for. Models do not wait for each other.

        ``look_behind`` allows to look at those behind a head that does not fit, which costs as much as some twenty decisions. Whom one
        call has passed over it does not look at again: every admission only leaves less.
        """
        if look_behind:
            self.stuck.forget()
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
                if self.stuck.still(model, head, pool, self._banks, now_s):
                    continue
                choice = self.choose(head, pool, now_s, contended=None)
                if isinstance(choice, Choice):
                    return choice
                waiting[model] = choice
                self.stuck.keep(model, head, choice, pool, self._banks, now_s)
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
        for entry in self.queue.ready():
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
        demand, barred = entry.demand, entry.barred(now_s) | barred
        books = self._books(pool, demand.length_class.model)
        indifferent = self.router.is_indifferent(entry, books)
        crowd = Crowd(contended, partial(self._contended, pool, demand.tenant, now_s))
        if indifferent and not barred:  # mostly it goes to the roomiest, and nobody else need be looked at
            serving = [book for book in books if book.phase is ReplicaPhase.SERVING]
            choice = self._on_roomiest(entry, max(serving, key=ROOM), now_s, crowd) if serving else None
            if choice is not None:
                return choice
        looks = [
            (bank, bank.verdict(demand, now_s, entry.curves))
            for bank in self.banks(pool)
            if demand.length_class.model in bank.models
        ]
        places: list[Place] = []
        fits, plain = False, contended is False and not self.refusals and demand.ttft_s is None and demand.tpot_s is None
        for spot in spots_of(demand, looks, barred, None if indifferent else self.router.warmth):
            headroom, book, binding, look, row, cached_tokens = spot
            plenty = plain and headroom >= 1.0 - BURST_FILL_RATIO  # so that nothing is paced either
            if binding is Binding.NONE and not (plenty and book.at_ease(demand, cached_tokens, now_s)):
                binding = self._limit(entry, book, headroom, look.curves_on(row), now_s, crowd, cached_tokens, able=True)
            self._note(book, binding)
            places.append(spot.place(binding))
            if binding is Binding.NONE:
                fits = True
                if indifferent:
                    return Choice(entry, book, places[-1][1], places)
        if fits:
            book, verdict, binding = place = self.router.route(entry, places, books, now_s)
            if binding is Binding.NONE:
                return Choice(entry, book, verdict, places, self.router.standings)
            blocked = Blocked(places=places, standings=self.router.standings)
            blocked.note(*place)  # it waits for a warm one, and not for ever
            return blocked
        only_for_kv = bool(places) and all(binding is Binding.KV for _, _, binding in places)
        blocked = Blocked(only_for_kv=only_for_kv, contended=crowd.contended is True, places=places)
        for place in places:
            blocked.note(*place)
        return blocked

    def _limit(
        self, entry: Waiting, book: Book, headroom_ratio: float, curves: Curves, now_s: float, crowd: Crowd,
        cached_tokens: float = 0.0, *, able: bool = False,
    ) -> Binding:  # fmt: skip
        """What keeps ``entry``, which adds ``curves``, out of there; ``able``: it serves, and is large enough."""
        binding = (book.limit if able else book.binding)(entry.demand, headroom_ratio, now_s, cached_tokens)
        if binding is Binding.NONE and self._paced_out(entry, book, headroom_ratio, curves, now_s, crowd):
            return Binding.PACING
        if self.refusals and binding is Binding.NONE and self.refusals.hold(entry, book.spec.name, now_s):
            return Binding.PEERS
        return binding

    @staticmethod
    def _note(book: Book, binding: Binding) -> None:
        book.binding_last = binding
        if binding is Binding.KV or binding is Binding.PACING:
            book.kv_limited = True

    def _on_roomiest(self, entry: Waiting, book: Book, now_s: float, crowd: Crowd) -> Choice | None:
        """The choice of ``book`` where it takes ``entry``, which shares nothing there."""
        demand = entry.demand
        newcomer = book.newcomer(demand, now_s, entry.curves)
        headroom = book.headroom_with(newcomer, now_s)
        if book.ledger.occupied and headroom < 0.0:
            return None
        binding = self._limit(entry, book, headroom, newcomer.curves, now_s, crowd)
        self._note(book, binding)
        verdict = Verdict(binding, headroom, newcomer.curves, 0.0, newcomer)
        return Choice(entry, book, verdict) if binding is Binding.NONE else None

    def _paced_out(self, entry: Waiting, book: Book, headroom_ratio: float, curves: Curves, now_s: float, crowd: Crowd) -> bool:
        if not book.ledger.leases:
            return False
        burst = headroom_ratio < 1.0 - BURST_FILL_RATIO and self.burst.active(now_s, entry.demand.tenant)
        return (burst or crowd.is_contended()) and book.paced_out(entry.demand, curves, now_s)

    def _contended(self, pool: list[Book], tenant: str, now_s: float) -> bool:
        """Whether running plus queued demand exceeds what the replicas hold, for one of this tenant."""
        usable = sum(book.spec.usable_blocks for book in pool)
        peaks = sum(float(bank.peaks(now_s).sum()) for bank in self.banks(pool))
        return self.queue.peak_blocks_beside(tenant) + peaks > usable

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
