"""What is known of one replica that may fail requests: how those of the last seconds ended, whether it is ejected, how it comes back.

Decides nothing: ``core.health`` does, from the records of all.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

WINDOW_S = 10.0
RAMP_DOUBLINGS = 10.0  # from 1 to 1024: more than an engine runs at a time


class EjectReason(StrEnum):
    """Why a replica was ejected; a metric's label."""

    CONSECUTIVE = "consecutive_failures"
    RATIO = "failure_ratio"
    SLOW_START = "failed_in_slow_start"
    ELSEWHERE = "failed_elsewhere_too"


@dataclass(frozen=True, slots=True)
class SlowStart:
    """A bound on the requests that a replica has at a time: none before ``since_s``, rising since, and gone after ``over_s``."""

    since_s: float
    over_s: float

    def requests_max(self, now_s: float) -> float:
        """So many at a time."""
        elapsed_s = now_s - self.since_s
        if elapsed_s < 0.0:
            return 0.0
        return inf if elapsed_s >= self.over_s else 2.0 ** (RAMP_DOUBLINGS * elapsed_s / self.over_s)

    def closed(self, requests: int, now_s: float) -> bool:
        """Whether one that has ``requests`` gets no further one."""
        return requests + 1 > self.requests_max(now_s)


@dataclass(slots=True)
class HealthRecord:
    """What is known of one replica."""

    models: tuple[str, ...] = ()
    usable: bool = False  # by looking at it
    ended: deque[tuple[float, bool, float]] = field(
        default_factory=deque
    )  # when, whether it failed, when it was sent; of the window
    failed: int = 0  # of those
    in_a_row: int = 0
    incident_s: float = -inf  # when the last failure that counts was met
    answers: int = 0  # since it was taken in, or came back
    ejected_until_s: float | None = None
    ejected_s: float = 0.0  # for how long, the last time
    returned_s: float = -inf
    streak: int = 0  # ejections in a row
    slow_start: SlowStart | None = None
    doubt: SlowStart | None = None  # few at a time until it answers: it failed those before
    answered_s: float = -inf  # the last time
    suspected_until_s: float = -inf
    lifted: bool = False  # another proxy was answered since it was ejected here
    news: bool = False  # it came to be suspected or trusted

    def forget(self) -> None:
        """Begin anew."""
        self.ended.clear()
        self.failed = self.in_a_row = self.answers = 0
        self.doubt = None

    def note(self, now_s: float, *, failed: bool, sent_s: float = inf) -> None:
        """A request ended."""
        self.lapse(now_s)
        self.ended.append((now_s, failed, sent_s))
        self.failed += failed
        self.in_a_row = self.in_a_row + 1 if failed else 0
        self.answers += not failed

    def take_back(self, sent_s: float) -> bool:
        """The failure of the request sent then was none of its own; False where it did not count, or counts no more."""
        noted = next((one for one in reversed(self.ended) if one[1] and one[2] == sent_s), None)
        if noted is None:
            return False
        answered_since = any(not failed for when_s, failed, _ in self.ended if when_s > noted[0])
        self.ended.remove(noted)
        self.failed -= 1
        self.in_a_row -= bool(self.in_a_row) and not answered_since
        if self.incident_s == noted[0]:
            self.incident_s = -inf
        return True

    def lapse(self, now_s: float) -> None:
        """Forget what has left the window."""
        while self.ended and self.ended[0][0] <= now_s - WINDOW_S:
            self.failed -= self.ended.popleft()[1]

    @property
    def ejected_at_s(self) -> float | None:
        """Since when it gets nobody; None: it gets some."""
        return None if self.ejected_until_s is None else self.ejected_until_s - self.ejected_s

    def trust(self) -> bool:
        """It is suspected no more; True if it was."""
        if self.suspected_until_s == -inf:
            return False
        self.suspected_until_s, self.slow_start, self.news = -inf, None, True
        return True

    @property
    def in_use(self) -> bool:
        """Whether requests are sent there."""
        return self.usable and self.ejected_until_s is None
