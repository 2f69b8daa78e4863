"""One gate among several: what the store tells it, and what it has to tell.

Decides nothing about requests: it keeps a ``SharedBook`` for every replica and hands on what is told. A gate that is alone has none of it
(``Gate.several`` is None) and pays nothing.

The store's clock is known from what it tells: every record comes with it (``ahead_s`` is what it is ahead of our own).

Fails: before the first record has come the two clocks are taken as one.
"""

from proxy.core.events import Observed, Offered, PeersTold, RecordTold, ReplicaEvent
from proxy.core.fleet import Fleet
from proxy.core.shared import Record
from proxy.core.shared_book import SharedBook


class Several:
    """The shared side of one gate. ``proxies_apart`` is how many were known when the store was lost; None while it is in reach."""

    def __init__(self, fleet: Fleet) -> None:
        self.ahead_s = 0.0
        self.proxies_apart: int | None = None
        self._fleet = fleet
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

    # ---- what the store tells

    def told(self, event: PeersTold | RecordTold | Offered, now_s: float) -> bool:
        """Take in what the store told. True when the replica's engine is another than before, so that its leases are void."""
        restarted = False
        match event:
            case PeersTold(others, steps_now):
                book = self.book(others.replica)
                if book is not None:
                    book.told(others, steps_now, now_s)
            case RecordTold(record, store_s):
                self.ahead_s = store_s - now_s
                book = self.book(record.replica)
                restarted = book is not None and book.adopt(record, now_s, store_s)
                if restarted:
                    self._fleet.restarted(record.replica)
            case Offered():
                pass  # the gate looks at its queue after every event
        self._fleet.changed_load()
        return restarted

    def before(self, event: ReplicaEvent, now_s: float) -> None:
        """A replica is about to be looked at by ourselves."""
        if isinstance(event, Observed) and (book := self.book(event.sample.replica)) is not None:
            book.scraped(now_s, now_s + self.ahead_s, new_epoch=event.sample.new_epoch)

    def after(self, event: ReplicaEvent, now_s: float) -> None:
        """It was looked at: without the store our share is by what was seen."""
        if self.proxies_apart is None:
            return
        if isinstance(event, Observed) and (book := self.book(event.sample.replica)) is not None:
            book.keep_to_share(self.proxies_apart, now_s)

    def lost(self, proxies: int, now_s: float) -> None:
        """The store is out of reach, where ``proxies`` shared: from now on every replica is filled by our share only."""
        self.proxies_apart = proxies
        for book in self.books():
            book.keep_to_share(proxies, now_s)

    def back(self) -> None:
        """The store has taken all our rows anew. What others have is told next; until then they have what is not our share."""
        self.proxies_apart = None
