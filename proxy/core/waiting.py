"""A request in the queue: what is known of it there, and the place reserved for one that heads it.

Decides nothing; its order within its tenant is ``sort_key``.
"""

from collections.abc import Set
from dataclasses import dataclass, field
from math import inf

from proxy.core.considered import Considered
from proxy.core.demand import Demand
from proxy.core.newcomers import CurveCache


@dataclass(slots=True)
class Reservation:
    """Where a head that does not fit is to start: a replica, a step of its clock, and the blocks that will be spare beside it."""

    replica: str
    step: float
    spare_blocks: float


@dataclass(slots=True, eq=False)
class Waiting:
    """One request in the queue. ``charge_block_steps`` and ``peak_blocks`` are forecasts made at arrival.

    ``start_by_s`` is its latest start: the deadline, or earlier where the first token has to come in time. ``promised`` says that it will
    start by then, as far as can be told; one without a promise stands by until ``standby_until_s``. ``forecast_s`` is the wait that was
    forecast at ``forecast_at_s``, when it got its promise. ``rank_s`` orders a tenant's line: the latest start, and for one that got its
    promise later the latest start that it would have had if it had come then.
    """

    demand: Demand
    enqueued_s: float
    streaming: bool = False
    charge_block_steps: float = 0.0
    peak_blocks: float = 0.0
    excluded: Set[str] = frozenset()  # replicas that cannot serve it
    tries: int = 0  # replicas that have failed it, or could not be had after all
    avoided: dict[str, float] = field(default_factory=dict)  # those that failed it, and until when they are not tried again
    curves: CurveCache = field(default_factory=dict)
    reservation: Reservation | None = None
    sequence: int = 0
    may_wait: bool = True  # for a warm replica while a cold one has room
    warm_until_s: float | None = None  # until when it does; None: it has not begun to
    promised: bool = True
    forecast_at_s: float = 0.0
    forecast_s: float | None = None
    standby_until_s: float = inf
    start_by_s: float = inf
    rank_s: float = inf
    returning: bool = False  # it was told to come back at about this time
    degraded: bool = False  # it asks for fewer output tokens than its client did
    held_by: str = ""  # the share of its tenant that keeps it from going (``core.tenant_shares``)
    asks_much: bool = False  # its tenant does, beside others (``core.tenant_room``)
    refusals: int = 0  # by the store that several proxies share
    held_off: dict[str, float] = field(default_factory=dict)  # by replica, until when the store need not be asked again
    considered: Considered = field(default_factory=Considered)

    def __post_init__(self) -> None:
        if self.demand.kept_from:
            self.excluded = self.excluded | self.demand.kept_from
        self.bound(self.demand.deadline_s)

    def bound(self, start_by_s: float) -> None:
        """It must start by then. Not to be called while it waits: its place in the line depends on it."""
        self.rank_s = self.start_by_s = min(self.start_by_s, start_by_s)

    def barred(self, now_s: float) -> Set[str]:
        """Replicas, or their servers, to which it does not go now."""
        if not self.avoided:
            return self.excluded
        return self.excluded | {name for name, until_s in self.avoided.items() if now_s < until_s}

    @property
    def sort_key(self) -> tuple[bool, float, float]:
        """Promised ones first, then by rank, then by arrival; a rerouted one (negative sequence) before all of them."""
        return not self.promised, -inf if self.sequence < 0 else self.rank_s, self.sequence


def sort_key(entry: Waiting) -> tuple[bool, float, float]:
    """``Waiting.sort_key``, for ``bisect``."""
    return entry.sort_key
