"""What the store that several proxies share has refused lately, so that it is not asked what it would refuse again.

Rule. Who was refused on a replica is not asked for there again before ``retry_s``, nor, where the store has granted nothing there since it
refused before, before ``AGAIN_S``: our own row there is older than our ledger, and until it is written again the answer is the same. Until
then nobody else is asked for there who goes no earlier (no higher priority) and would hold no less (peak of its forecast).

Why: with many waiting, asking for each in turn kept four proxies so busy that answers took a fifth of a second, and the pools stood empty
meanwhile. Who wants less than whoever was refused is asked for, so that small requests still fill what a large one leaves.

Fails: a request that is refused for its rank holds off those of its proxy for as long, though another might have had a better one.
"""

from typing import NamedTuple

from proxy.core.waiting import Waiting

AGAIN_S = 0.05
RETRY_S_MAX = 0.25  # a store that recovers says when it will have at the latest; mostly it has sooner


class Refused(NamedTuple):
    """Until when nobody of at most this priority and at least this peak is to be asked for."""

    until_s: float
    priority: int
    peak_blocks: float


class Refusals:
    """By replica, what was refused since something was granted or offered there. Empty where no store is shared."""

    def __init__(self) -> None:
        self._last: dict[str, Refused] = {}

    def __bool__(self) -> bool:
        """Whether any stands."""
        return bool(self._last)

    def refused(self, entry: Waiting, replica: str, now_s: float, retry_s: float) -> None:
        """The store refused ``entry`` there."""
        entry.refusals += 1
        again, retry_s = replica in self._last or entry.refusals > 1, min(retry_s, RETRY_S_MAX)
        until_s = entry.held_off[replica] = now_s + (max(retry_s, AGAIN_S) if again else retry_s)
        self._last[replica] = Refused(until_s, entry.demand.priority, entry.peak_blocks)

    def granted(self, replica: str) -> None:
        """The store granted or offered something there."""
        self._last.pop(replica, None)

    def hold(self, entry: Waiting, replica: str, now_s: float) -> bool:
        """Whether ``entry`` is not to be asked for there yet."""
        if now_s < entry.held_off.get(replica, now_s):
            return True
        last = self._last.get(replica)
        if last is None or now_s >= last.until_s:
            return False
        return entry.demand.priority <= last.priority and entry.peak_blocks >= last.peak_blocks
