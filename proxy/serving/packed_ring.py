"""The last so many records, packed, in memory that is taken once and used again and again.

One by one on the heap, thousands of records of half a kilobyte to a whole one come to lie between everything that comes and goes, and keep
their pages from being given back: each burst raised the process for as long as it takes to replace them all. Here they lie one after the
other in segments; the oldest segment is written over when what is newer are enough.

Bound: ``kept_max`` records, and what else is in the segment of the oldest. A record longer than a segment has one of its own.
"""

from array import array
from collections import deque
from collections.abc import Iterator
from itertools import islice

SEGMENT_BYTES = 256 * 1024  # some 300 decisions


class _Segment:
    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.ends = array("I", [0])  # of each record, after the beginning of the first
        self.lent = False  # somebody reads it elsewhere, so that it may only be added to

    def __len__(self) -> int:
        return len(self.ends) - 1

    def takes(self, size: int) -> bool:
        """Whether there is room for so many bytes more."""
        return self.ends[-1] + size <= len(self.data)

    def append(self, packed: bytes) -> None:
        begin = self.ends[-1]
        self.data[begin : begin + len(packed)] = packed
        self.ends.append(begin + len(packed))

    def newest_first(self) -> Iterator[bytes]:
        for place in range(len(self.ends) - 1, 0, -1):
            yield bytes(self.data[self.ends[place - 1] : self.ends[place]])

    def lend(self) -> "_Segment":
        """What it holds now, over the same memory."""
        other, self.lent = _Segment(0), True
        other.data, other.ends = self.data, self.ends[:]
        return other


class PackedRing:
    """The last ``kept_max`` records appended, oldest first."""

    def __init__(self, kept_max: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._kept_max = kept_max
        self._segment_bytes = segment_bytes
        self._segments: deque[_Segment] = deque([_Segment(segment_bytes)])
        self._count = 0  # in all segments

    def __len__(self) -> int:
        """How many can be read."""
        return min(self._count, self._kept_max)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, used or not."""
        return sum(len(segment.data) for segment in self._segments)

    def append(self, packed: bytes) -> None:
        """Keep one more; the oldest goes."""
        segment = self._segments[-1]
        if not segment.takes(len(packed)):
            segment = self._fresh(len(packed))
        segment.append(packed)
        self._count += 1

    def __reversed__(self) -> Iterator[bytes]:
        """Copies of them, the newest first."""
        return islice((one for segment in reversed(self._segments) for one in segment.newest_first()), len(self))

    def latest(self, count: int) -> list[bytes]:
        """The newest ``count``, as far as they are kept, the oldest first."""
        found = list(islice(reversed(self), max(0, count)))
        found.reverse()
        return found

    def copy(self) -> "PackedRing":
        """What it holds now, to be read elsewhere while this one goes on: nothing is moved, and nothing there written over."""
        other = PackedRing(self._kept_max, 0)
        other._segments, other._count = deque(segment.lend() for segment in self._segments), self._count
        return other

    def _fresh(self, size: int) -> _Segment:
        """A segment with room: the oldest, where it is not needed, else a new one."""
        free = None
        while self._count - len(self._segments[0]) >= self._kept_max:
            free = self._segments.popleft()
            self._count -= len(free)
        if free is None or free.lent or len(free.data) != max(size, self._segment_bytes):
            free = _Segment(max(size, self._segment_bytes))
        del free.ends[1:]
        self._segments.append(free)
        return free
