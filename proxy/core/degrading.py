"""Letting a request in with fewer output tokens than it asked for, where its class allows it (``degrade`` in ``when_saturated``).

Decides the cap: of ``m`` output tokens at most, half, a quarter … and at last the floor of the class are tried until one finds room,

    caps = m / 2, m / 4, ..., floor        each above the floor, of each sequence

*Before* ``queue``: one that finds none waits with the floor. *After* it: one whose time is over, or that no start can be promised, is let
in with the floor if that fits now, but nowhere a head has a place reserved.

Fails: a cap frees only what the forecast thought would come beyond it; where answers end long before, it finds no room either, and the cut
of the few that would have gone on is for nothing.
"""

from collections.abc import Iterator
from dataclasses import replace

from proxy.core.book import Book
from proxy.core.choice import Choice
from proxy.core.placement import Placement
from proxy.core.wait_queue import Waiting, WaitQueue


class Degrading:
    """Looks for room for less."""

    def __init__(self, queue: WaitQueue, placement: Placement) -> None:
        self._queue = queue
        self._placement = placement

    def at_once(self, entry: Waiting, books: list[Book], pool: list[Book], now_s: float) -> Choice | Waiting:
        """Where ``entry`` goes now with the largest cap that finds room; else how it is to wait. ``books`` serve its model."""
        if not entry.demand.degrade_first:
            return entry
        least = entry
        for cap in caps(entry, books):
            least = with_cap(entry, cap)
            choice = self._placement.at_once(least, pool, now_s)
            if choice is not None:
                return choice
        return least

    def at_last(self, entry: Waiting, books: list[Book], pool: list[Book], now_s: float) -> Choice | None:
        """Where one that is to be shed goes instead, if anywhere."""
        least = None
        for cap in caps(entry, books):
            least = with_cap(entry, cap)
        if least is None or entry.held_by:
            return None
        heads = (head.reservation for head in self._queue.heads() if head is not entry)
        barred = {reservation.replica for reservation in heads if reservation is not None}
        choice = self._placement.choose(least, pool, now_s, contended=None, barred=barred)
        return choice if isinstance(choice, Choice) else None


def caps(entry: Waiting, books: list[Book]) -> Iterator[int]:
    """Caps to try, the largest first; none for one that may not be degraded or has no more than the floor."""
    floor = entry.demand.degrade_tokens_min
    cap = min((book.output_tokens_max(entry.demand) for book in books), default=0)
    if floor is None:
        return
    while cap > floor:
        cap = max(floor, cap // 2)
        yield cap


def with_cap(entry: Waiting, cap: int) -> Waiting:
    """The request as it asks for no more than ``cap`` output tokens of each sequence, with forecasts of its own."""
    degraded = replace(entry.demand, output_tokens_max=cap)
    return Waiting(
        degraded,
        entry.enqueued_s,
        entry.streaming,
        excluded=entry.excluded,
        tries=entry.tries,
        avoided=entry.avoided,
        may_wait=entry.may_wait,
        returning=entry.returning,
        degraded=True,
    )
