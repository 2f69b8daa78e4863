"""Which rows of one proxy the store has, and which of them are to be looked at now.

Rule. A row is due when something changed that the store does not have, and after a while even so, that it may not expire. What came and
went where a pool is so roomy that nobody can be waiting for it (``SharedBook.is_roomy``) is told every ``ROOMY_S``, as long as the proxy
has anything there. Replicas take turns, ``TURNS`` within the time in which a change is told: rows written all at once hold up the requests
that come meanwhile, those of 16 replicas for some two milliseconds. A replica of which the store has no row at all has its turn always.

Fails: where replicas come and go within a turn, one of them may be passed over until the next round.
"""

from collections.abc import Iterable
from math import inf

TURNS = 4
# What ended meanwhile is kept from others for as long: no more than what an advance keeps from them (``ahead.LIVES_S``).
ROOMY_S = 0.5
UNTOLD = -1  # a change that the store does not have


class RowsWritten:
    """By replica: which of its changes the store has, and since when. Times are the proxy's own clock's."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, float]] = {}
        self._turn = 0

    def __contains__(self, replica: str) -> bool:
        """Whether the store has any row of ours there."""
        return replica in self._rows

    def __repr__(self) -> str:
        """Counts for people and tests."""
        return f"<RowsWritten {len(self._rows)}>"

    def clear(self) -> None:
        """The store has none, as far as is known."""
        self._rows.clear()

    def has_all(self, replicas: Iterable[str]) -> bool:
        """Whether the store has our row of each of these."""
        return self._rows.keys() >= set(replicas)

    def wrote(self, replica: str, changes: int, at_s: float) -> None:
        """The store has the row as it was after so many changes."""
        self._rows[replica] = changes, at_s

    def outdated(self, replica: str) -> None:
        """What the store has is to be written anew, whatever changes."""
        if replica in self._rows:
            self._rows[replica] = UNTOLD, self._rows[replica][1]

    def stale(self, replica: str, changes: int, now_s: float, renewed_s: float, *, roomy: bool) -> bool:
        """Whether there are other changes, in a ``roomy`` pool ones that must be told, or it was written ``renewed_s`` ago."""
        known, at_s = self._rows.get(replica, (UNTOLD, -inf))
        if roomy and known != UNTOLD:
            return now_s - at_s >= min(ROOMY_S, renewed_s)
        return known != changes or now_s - at_s >= renewed_s

    @staticmethod
    def turns(replicas: int) -> int:
        """In how many turns so many are looked at."""
        return max(1, min(TURNS, replicas))

    def next_turn(self, replicas: list[str]) -> tuple[set[str], bool]:
        """Those to be looked at now, and whether a round begins with them."""
        turns = self.turns(len(replicas))
        self._turn = (self._turn + 1) % turns
        missing = {replica for replica in replicas if replica not in self._rows}
        return missing.union(replicas[self._turn :: turns]), self._turn == 0
