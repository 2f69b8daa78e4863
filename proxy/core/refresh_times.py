"""When the forecasts of a fleet's books are to be made anew, and the fastest of their clocks.

Both are asked for after every event, of a thousand replicas as of one: so they are kept by book, and a book is asked again only when
something happened to it that moves them (``changed``): its forecast was made anew, it was looked at, others told of it, or its first lease
came or its last one went. All of them are gone through only where the first itself moves back: where requests come one at a time each is
its book's first and last lease.

Fails: a clock that goes another way without a word is heard of when its book changes next, a few tenths of a second later.
"""

from collections.abc import Sequence
from math import inf

from proxy.core.book import Book


class RefreshTimes:
    """Of the books of one fleet, by their places in it. Seconds of the gate's clock; steps per second."""

    def __init__(self, books: Sequence[Book] = ()) -> None:
        self._books = books
        self._places = {book.spec.name: place for place, book in enumerate(books)}
        self._due_s = [inf] * len(books)
        self._rates = [0.0] * len(books)
        self._changed = set(self._places.values())
        self._first = inf, 0.0

    def changed(self, replica: str) -> None:
        """Ask its book again; nothing for a replica that is not here."""
        place = self._places.get(replica)
        if place is not None:
            self._changed.add(place)

    def first(self) -> tuple[float, float]:
        """When the first refresh is due, infinite while nothing runs anywhere; and the highest rate, 0 where there is no replica."""
        if self._changed:
            self._settle()
        return self._first

    def due(self, now_s: float) -> list[Book]:
        """Books that are due, the longest due first."""
        if self.first()[0] > now_s:
            return []
        found = sorted((due_s, place) for place, due_s in enumerate(self._due_s) if due_s <= now_s)
        return [self._books[place] for _, place in found]

    def _settle(self) -> None:
        first_s, fastest = self._first
        slower = later = False
        for place in self._changed:
            book = self._books[place]
            due_s, rate = book.refresh_due_s(), book.clock.rate_per_s
            later |= due_s > self._due_s[place] == first_s
            slower |= rate < self._rates[place] == fastest
            first_s, fastest = min(first_s, due_s), max(fastest, rate)
            self._due_s[place], self._rates[place] = due_s, rate
        self._changed.clear()
        self._first = min(self._due_s) if later else first_s, max(self._rates) if slower else fastest
