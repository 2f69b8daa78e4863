"""One proxy's side of the shared store, without I/O: the store's clock, whether the store is in touch, and the share when it is not.

The store's clock. An answer that tells the store's time T was written between ``asked`` and ``answered``; the offset is read at the middle,

    offset = T - (asked + answered) / 2            error at most (answered - asked) / 2

and the reading with the shortest round trip is kept, but none longer than ``OFFSET_KEPT_S``: clocks drift apart.

In touch. A proxy is *sharing* while answers come. A call that timed out takes it out of touch only when nothing that was asked later or
with it was answered: one lost call among many is no outage. Out of touch it is *apart* until the store has taken all of its rows anew.

The share. A proxy that is apart may fill what it holds and its part of what is free by the measurement,

    share  = own_placed + max(0, usable - measured) / proxies           usable / proxies where nothing was measured
    others = usable - share                                             a constant curve in the place of the others' rows

so that proxies that are all apart together overshoot by nothing, and one that is apart alone by its share at most. What was sent and is
not in the measurement yet comes out of the part of what is free: counted as held as well, it was handed out anew with each that was sent,
and four proxies that recovered together took 2.3 times the pool.

Fails: with more proxies than were known, or with a measurement older than what others sent since, by what they sent.
"""

from math import inf

import numpy as np

from proxy.core.grid import FloatArray

OFFSET_KEPT_S = 1.0


class StoreClock:
    """The store's time by one's own clock."""

    def __init__(self) -> None:
        self.offset_s = 0.0
        self.round_trip_s = inf  # of the reading in use
        self._read_s = -inf

    def __repr__(self) -> str:
        """Reading for people and tests."""
        return f"<StoreClock offset={self.offset_s:.6f} round_trip={self.round_trip_s:.6f}>"

    @property
    def known(self) -> bool:
        """Whether it has been read."""
        return self.round_trip_s < inf

    def heard(self, store_s: float, asked_s: float, answered_s: float) -> None:
        """An answer that tells the store's time; ``asked_s`` and ``answered_s`` are by one's own clock."""
        round_trip_s = answered_s - asked_s
        if round_trip_s <= self.round_trip_s or answered_s - self._read_s > OFFSET_KEPT_S:
            self.offset_s = store_s - (asked_s + answered_s) / 2.0
            self.round_trip_s, self._read_s = round_trip_s, answered_s

    def store_s(self, now_s: float) -> float:
        """The store's time at ``now_s`` of one's own clock."""
        return now_s + self.offset_s

    def own_s(self, store_s: float) -> float:
        """One's own time at ``store_s`` of the store's clock."""
        return store_s - self.offset_s


class Touch:
    """Whether the store is in touch. Begins out of touch: nothing has been written yet."""

    def __init__(self) -> None:
        self.sharing = False
        self.changes = 0  # how often it went either way
        self._asked_s = -inf  # when the latest call that was answered had been asked

    def __repr__(self) -> str:
        """Reading for people and tests."""
        return f"<Touch {'sharing' if self.sharing else 'apart'} changes={self.changes}>"

    def answered(self, asked_s: float) -> None:
        """A call that was asked then was answered, whatever the answer."""
        self._asked_s = max(self._asked_s, asked_s)

    def failed(self, asked_s: float) -> bool:
        """A call that was asked then failed or timed out; True when this takes the proxy out of touch."""
        if not self.sharing or self._asked_s >= asked_s:
            return False
        self.sharing, self.changes = False, self.changes + 1
        return True

    def written(self) -> bool:
        """The store has taken all rows; True when this brings the proxy back in touch."""
        if self.sharing:
            return False
        self.sharing, self.changes = True, self.changes + 1
        return True


def share_blocks(usable_blocks: float, proxies: int, *, placed_blocks: float, measured_blocks: float | None) -> float:
    """Blocks that one of ``proxies`` may fill by itself: what it is measured to hold, and its part of what is free."""
    if measured_blocks is None:
        return max(placed_blocks, usable_blocks / proxies)
    return placed_blocks + max(0.0, usable_blocks - measured_blocks) / proxies


def others_apart(usable_blocks: float, share: float, points: int) -> FloatArray:
    """What stands for the others' curves while they are out of touch: all but the share, certain, at every step. Shape (4, points)."""
    curves = np.zeros((4, points))
    curves[0] = curves[2] = max(0.0, usable_blocks - share)
    return curves
