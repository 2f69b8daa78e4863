"""Is the engine that answered still the one that answered before?

Two things look alike for a moment: one engine that restarted (all it held is gone: a new epoch) and several engines behind one URL
that answer in turn (nothing measured there describes any one of them). What tells them apart:

- A start time (``process_start_time_seconds``) seen for the first time and newer than the last: a new epoch. One seen before, or
  older than the last: several engines, since a restart cannot take a process back in time.
- Without start times (several API server processes do not expose one) the counters, which only grow: they fall, a new epoch. They
  fall twice, or onto values seen shortly before, without a failed scrape in between: several engines, since a restart takes longer than
  that and begins at zero.

What is missing is no evidence. "Several" stays until ``FRESH_SAME_TO_CLEAR`` fresh connections in a row reached one engine (a rolling
update looks like several engines while it lasts).

Fails: engines that all idle at equal counters and hide their start time are one until they get traffic; a restart between two scrapes
further apart than a start takes, without start times, may read as several if it happens twice within ``WINDOW`` scrapes.
"""

from collections import deque
from collections.abc import Mapping
from enum import StrEnum

FRESH_SAME_TO_CLEAR = 32  # with two engines evenly balanced, 32 in a row by chance: once in four billion
WINDOW = 32  # scrapes that a fall is remembered: four turns of a fresh connection at every eighth scrape
STARTS_REMEMBERED = 256


class Verdict(StrEnum):
    """What one more scrape says."""

    SAME = "same"
    NEW_EPOCH = "new_epoch"
    SEVERAL = "several"


class EpochJudge:
    """Judges the scrapes of one URL in the order they were made."""

    def __init__(self) -> None:
        self._started_s: float | None = None
        self._starts: dict[float, None] = {}
        self._recent: deque[dict[str, float]] = deque(maxlen=WINDOW)
        self._scrapes_since_fall: int | None = None
        self._several = False
        self._fresh_same = 0

    @property
    def several(self) -> bool:
        """Whether several engines are held to be behind the URL."""
        return self._several

    def interrupted(self) -> None:
        """A scrape failed: whatever counters do next, a restart may explain."""
        while len(self._recent) > 1:
            self._recent.popleft()
        self._scrapes_since_fall = None

    def declare_several(self) -> None:
        """Other evidence shows several engines, such as two start times within one burst of connections."""
        self._several = True
        self._fresh_same = 0

    def observe(self, *, fresh_connection: bool, started_s: float | None, counters: Mapping[str, float]) -> Verdict:
        """One scrape: whether it came over a new connection, the process start time in Unix seconds, and its counters."""
        verdict = self._compare(started_s, counters)
        if verdict is Verdict.SEVERAL:
            self.declare_several()
        elif self._several:
            if verdict is Verdict.NEW_EPOCH:
                self._fresh_same = 0
            elif fresh_connection:
                self._fresh_same += 1
            self._several = self._fresh_same < FRESH_SAME_TO_CLEAR
        return Verdict.SEVERAL if self._several else verdict

    def _compare(self, started_s: float | None, counters: Mapping[str, float]) -> Verdict:
        if started_s is not None and started_s != self._started_s:
            return self._other_start(started_s, counters)
        verdict = self._compare_counters(counters)
        self._recent.append(dict(counters))
        return verdict

    def _other_start(self, started_s: float, counters: Mapping[str, float]) -> Verdict:
        last_s = self._started_s
        known = started_s in self._starts
        self._started_s = started_s
        self._starts[started_s] = None
        if len(self._starts) > STARTS_REMEMBERED:
            del self._starts[next(iter(self._starts))]
        if last_s is None:
            # First sight, or the start time was missing before: only the counters can tell.
            verdict = self._compare_counters(counters)
        else:
            verdict = Verdict.SEVERAL if known or started_s < last_s else Verdict.NEW_EPOCH
            self._recent.clear()
            self._scrapes_since_fall = None
        self._recent.append(dict(counters))
        return verdict

    def _compare_counters(self, counters: Mapping[str, float]) -> Verdict:
        if self._scrapes_since_fall is not None:
            self._scrapes_since_fall += 1
        if not self._recent or not _fell(self._recent[-1], counters):
            return Verdict.SAME
        fell_lately = self._scrapes_since_fall is not None and self._scrapes_since_fall < WINDOW
        self._scrapes_since_fall = 0
        # Landing on zeros proves nothing: that is where a restart lands too.
        landed_back = any(any(past.values()) and not _fell(past, counters) for past in self._recent)
        return Verdict.SEVERAL if fell_lately or landed_back else Verdict.NEW_EPOCH


def _fell(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Whether any counter known on both sides is lower now."""
    return any(after[key] < value for key, value in before.items() if key in after)
