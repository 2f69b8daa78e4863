"""The rows of one ledger: what is known of each prompt part of each lease, and its curves, in parallel arrays.

Decides nothing. A row is taken when a lease is booked and freed when it ends; freed rows hold zeros, so sums over all rows are sums over
the live ones, and no row has to be looked for. Progress is read from the leases in one pass (``read``), because the relay writes it there.

Fails: after a burst the arrays stay as long as they were; where most rows are free, only the live ones are gone through.
"""

from operator import attrgetter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from proxy.core.curves import RowStates
from proxy.core.grid import FloatArray

ROWS_START = 8  # a replica of a thousand holds few leases of one proxy, and 64 rows took 150 kB
DENSE_RATIO = 0.5  # from this share of live rows on, going through all of them is faster than picking

TOKENS, PLACED = attrgetter("output_tokens"), attrgetter("placed")

Rows = slice | NDArray[np.intp]


class Progress(Protocol):
    """What the relay writes as it looks on: output tokens over all sequences of a lease, and whether it holds blocks for certain."""

    output_tokens: int
    placed: bool


class LeaseRows:
    """Arrays by row. Tokens are of one sequence; steps are the replica's decode steps."""

    def __init__(self, intervals: int) -> None:
        self.used = 0  # rows below this were taken at some time
        self.owners: dict[int, Progress] = {}
        self._free: list[int] = []
        self.live = np.zeros(ROWS_START, dtype=bool)
        self.placed = np.zeros(ROWS_START, dtype=bool)
        self.streaming = np.zeros(ROWS_START, dtype=bool)
        self.classes = np.zeros(ROWS_START, dtype=np.intp)
        self.fields = np.zeros((6, ROWS_START))  # as in RowStates
        self.sent_steps = np.zeros(ROWS_START)
        self.sequences = np.ones(ROWS_START)  # of the whole lease
        self.tokens = np.zeros(ROWS_START)  # seen of one sequence, when last read
        self.looked = np.full(ROWS_START, -1.0)  # ``tokens`` at the last look; negative: not seen then
        self.curves = np.zeros((4, ROWS_START, intervals))  # mean, variance, ceiling, common
        self.alive = np.zeros((ROWS_START, intervals))
        self.cap_ends = np.zeros((2, ROWS_START))  # steps to the cap, blocks then freed times the probability of getting there

    def __len__(self) -> int:
        """Live rows."""
        return len(self.owners)

    def take(self, owner: Progress) -> int:
        """A free row for ``owner``, all zeros."""
        if not self._free and self.used == len(self.live):
            self._grow()
        row = self._free.pop() if self._free else self.used
        self.used = max(self.used, row + 1)
        self.owners[row] = owner
        self.live[row] = True
        self.looked[row] = -1.0
        return row

    def _grow(self) -> None:
        rows = len(self.live)
        for name in ("live", "placed", "streaming", "classes", "sent_steps", "sequences", "tokens", "looked", "alive"):
            array = getattr(self, name)
            longer = np.zeros((2 * rows, *array.shape[1:]), array.dtype)  # pages that nobody has written are no memory yet
            longer[:rows] = array
            setattr(self, name, longer)
        for name in ("fields", "curves", "cap_ends"):
            array = getattr(self, name)
            longer = np.zeros((len(array), 2 * rows, *array.shape[2:]), array.dtype)
            longer[:, :rows] = array
            setattr(self, name, longer)

    def free(self, rows: list[int]) -> None:
        """Their lease ended."""
        for row in rows:
            self.live[row] = self.placed[row] = False
            self.fields[:, row] = 0.0
            self.curves[:, row] = 0.0
            self.alive[row] = 0.0
            self.cap_ends[:, row] = 0.0
            del self.owners[row]
            self._free.append(row)

    def every(self) -> Rows:
        """All live rows, and where most are live the free ones among them too."""
        return slice(0, self.used) if len(self.owners) >= DENSE_RATIO * self.used else np.flatnonzero(self.live[: self.used])

    def states(self, rows: Rows) -> RowStates:
        """What the forecast needs to know of them."""
        prompt, out, cap, copies, delay, shares = self.fields[:, rows]
        return RowStates(prompt, out, cap, copies, delay, shares, self.classes[rows])

    def read(self) -> None:
        """Take over what the relay wrote to the leases."""
        rows, owners = list(self.owners), self.owners.values()
        count = len(rows)
        tokens = np.fromiter(map(TOKENS, owners), np.float64, count)
        self.tokens[rows] = tokens / self.sequences[rows]
        self.placed[rows] = np.fromiter(map(PLACED, owners), np.bool_, count)

    def look(self) -> tuple[bool, float | None]:
        """Whether any stream shows tokens, and the most that any advanced since the last look; None where none was seen then."""
        self.read()
        tokens, looked = self.tokens[: self.used], self.looked[: self.used]
        shown = self.live[: self.used] & self.streaming[: self.used] & self.placed[: self.used]
        if not shown.any():
            looked[:] = -1.0
            return False, None
        both = shown & (looked >= 0.0)
        moved = float((tokens - looked)[both].max()) if both.any() else None
        self.looked[: self.used] = np.where(shown, tokens, -1.0)
        return True, moved

    def tokens_out(self, steps_now: float, delay_steps: float) -> FloatArray:
        """Output tokens of one sequence of each row below ``used``, below its cap: seen on the stream, else the step clock's guess."""
        guess = np.maximum(steps_now - self.sent_steps[: self.used] - delay_steps, 0.0)  # at most: it may not be placed yet
        tokens = np.where(self.streaming[: self.used], self.tokens[: self.used], guess)
        result: FloatArray = np.maximum(np.minimum(tokens, self.fields[2, : self.used] - 1.0), 0.0)
        return result
