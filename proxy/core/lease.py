"""Leases: the promises of blocks on one replica, and what is known of their being placed.

Decides which of them hold blocks for certain: a lease does once its first token was seen or the engine's count of running requests had
room for it. What ended lately is kept, because a measurement may be from before.
"""

from collections import deque
from dataclasses import dataclass, field
from math import inf

from proxy.core.considered import Considered
from proxy.core.demand import Demand
from proxy.core.outcome import Would

ENDED_MAX = 256


@dataclass(slots=True, eq=False)
class Lease:
    """One promise of blocks. ``output_tokens`` counts over all its sequences and is written by the relay as it looks on."""

    lease_id: str
    demand: Demand
    replica: str
    output_tokens_max: int  # per sequence, after the context's clamp
    sent_s: float
    sent_steps: float
    streaming: bool = False
    output_tokens: int = 0
    placed: bool = False
    placed_s: float = -inf  # when it was seen to be
    ended: bool = False
    output_tokens_forecast: float = 0.0
    cached_tokens: int = 0  # of the prompt, expected in the replica's prefix cache when it was sent
    rows: list[int] = field(default_factory=list)
    held: bool = False  # it had waited in the queue
    would: Would | None = None  # what enforcing would have done to it; None: the same, or nobody asked
    considered: Considered | None = None  # what was seen when it was placed
    store_number: int = 0  # of its reservation in the store that several proxies share; 0: it was not asked


class Leases:
    """Those of one replica, in the order of their sending. ``sequences`` is the sum over them."""

    def __init__(self) -> None:
        self.leases: dict[str, Lease] = {}
        self.sequences = 0
        self.ended: deque[tuple[float, float]] = deque(maxlen=ENDED_MAX)  # (when, blocks held) of the last leases that ended
        self._unplaced: dict[str, Lease] = {}

    def decoding(self, since_s: float, running: int | None) -> set[str]:
        """Leases certain to have held blocks: placed before ``since_s``, and no more of them than the engine runs, the oldest first."""
        known: set[str] = set()
        room = inf if running is None else running
        for lease in self.leases.values():  # in the order of sending
            if lease.placed and lease.placed_s < since_s:
                room -= lease.demand.sequences
                if room < 0:
                    break
                known.add(lease.lease_id)
        return known

    def unsettled(self, since_s: float, running: int | None) -> int:
        """Leases that came or went after ``since_s``, or are not known to hold blocks: what makes the interval one."""
        gone = sum(ended_s >= since_s for ended_s, _ in self.ended)
        return len(self.leases) - len(self.decoding(since_s, running)) + gone

    def unplaced(self) -> list[Lease]:
        """Leases sent and not known to be placed, the oldest first."""
        for lease_id in [lease_id for lease_id, lease in self._unplaced.items() if lease.placed]:
            del self._unplaced[lease_id]
        return list(self._unplaced.values())

    def sequences_placed(self) -> int:
        """Sequences of the leases known to be placed."""
        return self.sequences - sum(lease.demand.sequences for lease in self.unplaced())
