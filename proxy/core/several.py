"""One gate among several: what the store tells it, and what it has to tell.

Decides nothing about requests: it keeps a ``SharedBook`` for every replica and hands on what is told. A gate that is alone has none of it
(``Gate.several`` is None) and pays nothing.

The store's clock is known from what it tells: every record comes with it (``ahead_s`` is what it is ahead of our own).

Fails: before the first record has come the two clocks are taken as one.
"""

from math import inf

from proxy.core.backfill import earliest_start
from proxy.core.book import Book
from proxy.core.choice import Choice
from proxy.core.events import Observed, Offered, PeersTold, RecordTold, ReplicaEvent, ReplicaGone
from proxy.core.exchange import Exchange
from proxy.core.fleet import Fleet
from proxy.core.grid import FloatArray
from proxy.core.newcomers import Undrawn
from proxy.core.refusals import Refusals
from proxy.core.replica import ReplicaPhase
from proxy.core.saturation import Binding
from proxy.core.shared import Head, Level, Rank, Record, tenant_number
from proxy.core.shared_book import SharedBook
from proxy.core.tenant_rates import TenantRates
from proxy.core.verdict import Verdict
from proxy.core.wait_queue import Waiting, WaitQueue

HEADS_AMONG = 4  # replicas on which a head is put forward: each is one more call to the store

Ask = tuple[FloatArray | Level | None, Rank | None]  # what ``Reserve`` carries besides the lease


class Several:
    """The shared side of one gate. ``proxies_apart`` is how many were known when the store was lost; None while it is in reach."""

    def __init__(self, fleet: Fleet, queue: WaitQueue, refusals: Refusals, rates: TenantRates) -> None:
        self.ahead_s = 0.0
        self.proxies_apart: int | None = None
        self.exchange = Exchange(fleet, queue, rates)
        self.refusals = refusals
        self._fleet = fleet
        self._queue = queue
        self._books: dict[str, SharedBook] = {}

    def __repr__(self) -> str:
        """State for people and tests."""
        return f"<Several apart={self.proxies_apart} {list(self._books.values())!r}>"

    def book(self, replica: str) -> SharedBook | None:
        """The replica's shared side; None where there is no such replica."""
        book = self._fleet.books.get(replica)
        if book is None:
            return None
        found = self._books.get(replica)
        if found is None:
            found = self._books[replica] = SharedBook(book)
        elif found.book is not book:
            found.renewed(book)
        return found

    def books(self) -> list[SharedBook]:
        """Of every replica."""
        return [found for name in self._fleet.books if (found := self.book(name)) is not None]

    def record(self, replica: str, holder: str, now_s: float) -> Record | None:
        """What we publish of a replica that we scrape; None where there is no such replica."""
        book = self.book(replica)
        return None if book is None else book.record_now(holder, now_s, now_s + self.ahead_s)

    # ---- what a request asks of the store

    def ask(self, choice: Choice) -> Ask:
        """The row that a request adds where it goes, from now on, and its rank. To be asked before it is booked or charged."""
        entry, shared = choice.entry, self.book(choice.book.spec.name)
        if shared is None:
            return None, self.rank(entry)
        undrawn = isinstance(choice.verdict.newcomer, Undrawn)
        return shared.row_of_undrawn(entry.demand) if undrawn else shared.row_of_newcomer(entry), self.rank(entry)

    def rank(self, entry: Waiting) -> Rank:
        """The place of ``entry`` among all who wait."""
        demand = entry.demand
        virtual = self.exchange.virtual_known(demand)
        return Rank(-float(demand.priority), virtual, entry.start_by_s + self.ahead_s, tenant_number(demand.tenant))

    def heads(self, now_s: float) -> dict[str, list[Head]]:
        """By replica, the first of every priority that waits here; of replicas that have a record.

        It is put forward on the replicas that come nearest to having room for it, since it takes whichever has it first. Only where room is
        reserved for it is it promised any: elsewhere others may go ahead until it fits.
        """
        found: dict[str, list[Head]] = {name: [] for name in self._fleet.books}
        for entry in self._queue.heads():
            books = self._candidates(entry, now_s)
            books.sort(key=lambda book: -book.headroom_with(book.newcomer(entry.demand, now_s, entry.curves), now_s))
            reserved = self._reserved(entry, books)
            for book in {one.spec.name: one for one in (*books[:HEADS_AMONG], reserved) if one is not None}.values():
                shared = self.book(book.spec.name)
                if shared is not None and shared.record is not None:
                    steps = shared.record.steps_at(now_s + self.ahead_s)
                    ready = steps + self._ready_steps(entry, book, now_s) if book is reserved else inf
                    row = shared.row_of_newcomer(entry)
                    found[book.spec.name].append(Head(entry.demand.request_id, self.rank(entry), row, steps, ready))
        return found

    def _candidates(self, entry: Waiting, now_s: float) -> list[Book]:
        """Replicas that can take ``entry``."""
        barred = entry.barred(now_s)
        return [
            book
            for book in self._fleet.of_model(entry.demand.length_class.model)
            if book.phase is ReplicaPhase.SERVING and not book.spec.among(barred) and book.fits_alone(entry.demand)
        ]

    @staticmethod
    def _reserved(entry: Waiting, books: list[Book]) -> Book | None:
        """Where room is reserved for ``entry``; where none is, the nearest miss, the first of ``books``."""
        if entry.reservation is not None:
            for book in books:
                if book.spec.name == entry.reservation.replica:
                    return book
        return books[0] if books else None

    @staticmethod
    def _ready_steps(entry: Waiting, book: Book, now_s: float) -> float:
        """Steps from now to when ``entry`` will have room on ``book``; infinite: not within the horizon."""
        if entry.reservation is not None and entry.reservation.replica == book.spec.name:
            start: tuple[float, float] | None = entry.reservation.step, 0.0
        else:
            start = earliest_start(book, book.newcomer(entry.demand, now_s, entry.curves).curves, now_s)
        return inf if start is None else max(0.0, start[0] - book.steps_now(now_s))

    def taken_up(self, replica: str, now_s: float) -> Choice | None:
        """The choice of the first who waits for ``replica``, on which the store offers it room: it knows better than we do what is free
        of blocks there, and checks them once more. None where nobody waits for it, or another limit binds.
        """
        book = self._fleet.books.get(replica)
        for entry in self._queue.heads() if book is not None else ():
            if book is not None and book in self._candidates(entry, now_s):
                newcomer = book.newcomer(entry.demand, now_s, entry.curves)
                headroom = book.headroom_with(newcomer, now_s)
                if book.binding(entry.demand, max(0.0, headroom), now_s) is not Binding.NONE:
                    return None
                return Choice(entry, book, Verdict(Binding.NONE, headroom, newcomer.curves, 0.0, newcomer))
        return None

    # ---- what the store tells

    def told(self, event: PeersTold | RecordTold | Offered, now_s: float) -> bool:
        """Take in what the store told. True when the replica's engine is another than before, so that its leases are void."""
        restarted = False
        match event:
            case PeersTold(others, steps_now):
                replica = others.replica
                book = self.book(replica)
                if book is not None:
                    book.told(others, steps_now, now_s)
            case RecordTold(record, store_s):
                self.ahead_s, replica = store_s - now_s, record.replica
                book = self.book(replica)
                restarted = book is not None and book.adopt(record, now_s, store_s)
                if restarted:
                    self._fleet.restarted(replica)
            case Offered(replica):
                self.refusals.granted(replica)
                for head in self._queue.heads():
                    head.held_off.pop(replica, None)
        self._fleet.changed_load(replica)
        return restarted

    def granted(self, replica: str, free_blocks: float) -> None:
        """The store granted a place there and says what it leaves."""
        self.refusals.granted(replica)
        self.told_free(replica, free_blocks)

    def told_free(self, replica: str, free_blocks: float) -> None:
        """The store says what is free there; 0 where anybody waits, or was refused."""
        book = self.book(replica)
        if book is not None:
            book.free_blocks_told = free_blocks

    def before(self, event: ReplicaEvent, now_s: float) -> None:
        """A replica is about to be looked at by ourselves."""
        if isinstance(event, Observed) and (book := self.book(event.sample.replica)) is not None:
            book.scraped(now_s, now_s + self.ahead_s, new_epoch=event.sample.new_epoch)

    def after(self, event: ReplicaEvent, now_s: float) -> None:
        """It was looked at: without the store our share is by what was seen. One that is gone leaves nothing behind."""
        if isinstance(event, ReplicaGone):
            self._books.pop(event.replica, None)
        if self.proxies_apart is None:
            return
        if isinstance(event, Observed) and (book := self.book(event.sample.replica)) is not None:
            book.keep_to_share(self.proxies_apart, now_s)

    def lost(self, proxies: int, now_s: float) -> None:
        """The store is out of reach, where ``proxies`` shared: from now on every replica is filled by our share only."""
        self.proxies_apart = proxies
        self.exchange.accounts.lost()
        for book in self.books():
            book.keep_to_share(proxies, now_s)

    def has_share(self, replica: str, lease_id: str, proxies: int, now_s: float) -> bool:
        """Whether a lease that the store did not answer for is within our share of ``proxies``: then it counts as granted."""
        shared = self.book(replica)
        return shared is not None and shared.has_share(lease_id, proxies, now_s)

    def back(self) -> None:
        """The store has taken all our rows anew. What others have is told next; until then they have what is not our share."""
        self.proxies_apart = None
