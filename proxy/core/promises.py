"""Promised demand: those who were refused and told when to come back are demand at that time.

Who is refused learns when there will be room for its size (``core.wait_forecast``), and a seat is kept for it: the work of everybody told
before counts when the next one is told, and newcomers get no promise of room that those who are due will take. One calendar per tenant
and priority, since each tenant's line moves at its own rate. A client is known again by its request's fingerprint and shape. It may come
from a little before it was told (``EARLY_S``) until the end of the jitter that ``wire.answers`` adds, and ``LATE_S`` more; then the seat
is free.

Formula. Not everybody returns. Of the promises that ended, ``c`` were claimed and ``l`` lapsed, both forgotten by count; each promise open
counts with the share

    return ratio = (c + RETURNS_PRIOR / 2) / (c + l + RETURNS_PRIOR)

Fails: a client that changes its request before it returns, or reaches another proxy, is a newcomer there, and its seat lapses here.
"""

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, field

from proxy.core.demand import Demand

TOLD_S_MAX = 59.0  # clients obey no longer wait (``wire.answers``): who would have to wait longer is told not to return
JITTER_SHARE = 0.25  # as ``wire.answers`` adds it
EARLY_S = 0.5
LATE_S = 2.5  # Retry-After is rounded up to whole seconds, and people and networks take their time
RETURNS_PRIOR = 8.0  # promises: until so many ended, about every second one is thought to be claimed
RETURNS_KEEP = 1.0 - 1.0 / 200.0
WORK_MIN = 1e-6  # block-steps: what rounding leaves of a second without seats
PROMISES_MAX = 4096  # a minute of refusals at 70 a second; further ones are told as well, without a seat

Key = tuple[int, str, int, int, int | None]


@dataclass(slots=True, eq=False)
class Promise:
    """A seat of ``work`` block-steps kept from ``due_s`` (the earliest return, most likely a little later) until ``ends_s``."""

    line: tuple[int, str]
    key: Key
    due_s: float
    ends_s: float
    work: float
    open: bool = True


def key_of(demand: Demand) -> Key:
    """What a request has in common with its own repetition, and hardly with any other."""
    return demand.fingerprint, demand.tenant, demand.prompt_tokens, demand.sequences, demand.output_tokens_max


@dataclass(slots=True)
class _Calendar:
    """Work due in each second, in block-steps, and how many seats that is."""

    seats: int = 0
    due: dict[int, float] = field(default_factory=lambda: defaultdict(float))


class Promises:
    """Seats kept for those told to return."""

    def __init__(self) -> None:
        self._claimed = 0.0
        self._lapsed = 0.0
        self._count = 0
        self._by_key: dict[Key, deque[Promise]] = {}
        self._lines: dict[tuple[int, str], _Calendar] = {}
        self._ends: list[tuple[float, int, Promise]] = []
        self._serial = 0

    def __len__(self) -> int:
        """Seats kept."""
        return self._count

    def __repr__(self) -> str:
        """Counts for people and tests."""
        return f"<Promises open={len(self)} return_ratio={self.return_ratio:.2f}>"

    @property
    def return_ratio(self) -> float:
        """Share of those told who come back in time."""
        return (self._claimed + RETURNS_PRIOR / 2.0) / (self._claimed + self._lapsed + RETURNS_PRIOR)

    def told(self, demand: Demand, work: float, wait_s: float, now_s: float) -> None:
        """The client of ``demand`` was told to return in ``wait_s`` seconds; nothing is kept for who should not, or cannot be known."""
        self._lapse(now_s)
        if wait_s > TOLD_S_MAX or not demand.fingerprint or self._count >= PROMISES_MAX:
            return
        line, key, due_s = (demand.priority, demand.tenant), key_of(demand), now_s + wait_s
        promise = Promise(line, key, due_s, due_s + JITTER_SHARE * wait_s + LATE_S, work)
        self._by_key.setdefault(key, deque()).append(promise)
        calendar = self._lines.setdefault(line, _Calendar())
        calendar.seats += 1
        calendar.due[int(due_s)] += work
        self._serial += 1
        heapq.heappush(self._ends, (promise.ends_s, self._serial, promise))
        self._count += 1

    def claim(self, demand: Demand, now_s: float) -> bool:
        """Whether the request is one that was told to come at about this time; its seat is taken then."""
        self._lapse(now_s)
        if not self._by_key or not demand.fingerprint:
            return False
        for promise in self._by_key.get(key_of(demand), ()):
            if promise.due_s - EARLY_S <= now_s:
                self._end(promise, claimed=1.0)
                return True
        return False

    def _lapse(self, now_s: float) -> None:
        """Seats that nobody came for are free again."""
        while self._ends and (self._ends[0][0] < now_s or not self._ends[0][2].open):
            promise = heapq.heappop(self._ends)[2]
            if promise.open:
                self._end(promise, claimed=0.0)

    def _end(self, promise: Promise, *, claimed: float) -> None:
        self._claimed = RETURNS_KEEP * self._claimed + claimed
        self._lapsed = RETURNS_KEEP * self._lapsed + 1.0 - claimed
        promise.open = False
        self._count -= 1
        same, calendar, second = self._by_key[promise.key], self._lines[promise.line], int(promise.due_s)
        same.remove(promise)
        if not same:
            del self._by_key[promise.key]
        calendar.seats -= 1
        calendar.due[second] -= promise.work
        if calendar.due[second] <= WORK_MIN:
            del calendar.due[second]
        if not calendar.seats:
            del self._lines[promise.line]

    def work(self, priority: int, tenant: str) -> float:
        """Block-steps expected of everybody of a line who was told to return."""
        calendar = self._lines.get((priority, tenant))
        return 0.0 if calendar is None else self.return_ratio * sum(calendar.due.values())

    def wait_s(self, priority: int, tenant: str, work: float, rate_per_s: float, now_s: float) -> float:
        """Seconds until a line of ``work`` block-steps has moved on, with those who are due before then let in."""
        wait_s = work / rate_per_s
        calendar = self._lines.get((priority, tenant))
        if calendar is None:
            return wait_s
        share = self.return_ratio / rate_per_s
        for second in sorted(calendar.due):  # a minute or so of them, however many seats
            if second > now_s + wait_s:
                break
            wait_s += share * calendar.due[second]
        return wait_s
