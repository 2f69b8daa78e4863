"""One account for a tenant that is served by several proxies: where its virtual time stands at all of them.

Charges add up (``core.exchange``): with ``T`` what all proxies charged a tenant, by the store's account of the running period, its virtual
time at one of them is

    V = T + u + O        ``u`` charged here and not in ``T`` yet;  ``O`` its level: where it began, and how far it was lifted since

A tenant that comes back from idleness is lifted to the virtual time of the system, which is the least of all who wait at any proxy (where
nobody does, the clock): no credit for its absence. Only the proxy it comes to sees it come, so every proxy tells the levels of those who
wait there, and

    who waits at several        has the least of its levels at all of them: it was never absent where it has that one
    who waits elsewhere only    has that level here too, lifts included: else it would get at each proxy what it was denied at the first

Why: when each knew of its own lines only, a proxy at which nobody waited for a moment let everybody there begin anew at the clock, which is
how far anybody was ever charged ahead of its turn. There they waited until all the others had come so far, for a minute in places;
tenants of few clients, whose lines run dry oftener, had down to 0.4 of an equal share.

At its first word of the others, and when it was without it while a period ended, a proxy knows less of what was charged than they do: those
whom nobody else has waiting then begin at the virtual time of the system.

Fails: levels are as old as a beat. Of more than ``LEVELS_MAX`` tenants that wait here the last in turn are not told. Who reads a level of
before the store lost its accounts knows it by less having been charged since (``LOST_RATIO``), and does without until the next beat.
"""

from collections.abc import Iterable, Mapping
from heapq import nsmallest
from math import inf
from typing import NamedTuple

from proxy.core.wait_queue import WaitQueue

LEVELS_MAX = 256  # told with every beat, some 15 KB then; whoever is served before the next one is among them
SEEN_S_MIN = 1.0  # of a line that waited: an admission or two say nothing of its rate
LOST_RATIO = 0.5  # of what its teller knew of: charges are given back too, but not by half of what a period has

TenantKey = tuple[int, str]  # priority and tenant


class Level(NamedTuple):
    """How far a tenant's virtual time is ahead of what it was charged, ``charged`` by the account: token-time per weight. Besides, what of
    its line there has a promise, and how fast that moves (0: not seen for long enough to tell), in block-steps.
    """

    priority: int
    tenant: str
    offset: float
    charged: float
    promised: float = 0.0
    promised_per_s: float = 0.0


class Levels(NamedTuple):
    """Of those who wait at one proxy, over the charges of a period. In another period they mean nothing."""

    period: int = -1
    levels: tuple[Level, ...] = ()


NO_LEVELS = Levels()


class TenantAccounts:
    """One gate's side."""

    def __init__(self, queue: WaitQueue) -> None:
        self._queue = queue
        self._period: int | None = None  # None: nothing was heard yet
        self._missed = True  # whether something may have been charged that is in no account any more
        self._totals: Mapping[TenantKey, float] = {}
        self._told: dict[TenantKey, float] = {}  # of ours, and not in the totals yet

    def __repr__(self) -> str:
        """State for people and tests."""
        return f"<TenantAccounts period={self._period} tenants={len(self._totals)}>"

    def told(self, charges: Mapping[TenantKey, float]) -> None:
        """These charges of ours are on their way to the store."""
        for key, charge in charges.items():
            self._told[key] = self._told.get(key, 0.0) + charge

    def lost(self) -> None:
        """The others are not heard of: who waits there counts no more."""
        self._missed = True
        self._join_lines([])
        for band in self._queue.bands.values():
            band.floor_elsewhere = inf

    def _join_lines(self, others: Iterable[Level]) -> None:
        """Let every line know of its tenant's at other proxies."""
        for band in self._queue.bands.values():
            for line in band.tenants.values():
                line.charge_elsewhere = line.elsewhere_per_s = 0.0
        for level in others:
            ours = self._queue.band(level.priority).tenants.get(level.tenant)
            if ours is not None:
                ours.charge_elsewhere += level.promised
                ours.elsewhere_per_s += level.promised_per_s

    def levels(self) -> Levels:
        """Of those who wait here, the next in turn."""
        if self._period is None:
            return NO_LEVELS
        waiting = (
            (line.virtual, (priority, tenant))
            for priority, band in self._queue.bands.items()
            for tenant, line in band.tenants.items()
            if line.waiting
        )
        return Levels(self._period, tuple(self._level(*key) for _, key in nsmallest(LEVELS_MAX, waiting)))

    def _level(self, priority: int, tenant: str) -> Level:
        line, key = self._queue.bands[priority].tenants[tenant], (priority, tenant)
        drain = line.drain
        per_s = max(0.0, drain.work) / drain.seconds if drain.seconds >= SEEN_S_MIN else 0.0
        charged = self._totals.get(key, 0.0)
        return Level(priority, tenant, line.virtual - self._charged(key), charged, max(0.0, line.charge), per_s)

    def heard(self, totals: Mapping[TenantKey, float], period: int, told: Iterable[Levels]) -> None:
        """The store's account of the period, in which is what we told last, and the levels that the others told. To be called when the
        queue has been charged what the account has grown by.
        """
        begins = self._period is None or (self._missed and period != self._period)
        self._period, self._totals, self._told, self._missed = period, totals, {}, False
        others = [level for levels in told if levels.period == period for level in levels.levels]
        self._join_lines(others)
        elsewhere = self._waiting_elsewhere(others)
        floors: dict[int, float] = {}
        for (priority, _), virtual in elsewhere.items():
            floors[priority] = min(virtual, floors.get(priority, inf))
        for priority in floors.keys() | self._queue.bands.keys():
            band = self._queue.band(priority)
            floor = band.floor_elsewhere = floors.get(priority, inf)
            least = -inf if not begins else floor if floor < inf else band.clock
            for tenant, line in band.tenants.items():
                virtual = elsewhere.get((priority, tenant), inf)
                if virtual < inf and (begins or not line.waiting):
                    line.virtual = virtual
                else:
                    line.virtual = max(min(line.virtual, virtual), least)

    def _waiting_elsewhere(self, levels: Iterable[Level]) -> dict[TenantKey, float]:
        """The virtual time of everybody who waits at other proxies."""
        found: dict[TenantKey, float] = {}
        for level in levels:
            key = level.priority, level.tenant
            if self._totals.get(key, 0.0) >= LOST_RATIO * level.charged:
                found[key] = min(level.offset + self._charged(key), found.get(key, inf))
        return found

    def _charged(self, key: TenantKey) -> float:
        """What was charged to a tenant, as far as is known here."""
        return self._totals.get(key, 0.0) + self._told.get(key, 0.0) + (self._queue.charged or {}).get(key, 0.0)
