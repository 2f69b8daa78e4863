"""What tenants are about to send: a forecast of the blocks that those who come from now on will have come to hold.

Formula. Of tenant ``j``, who was admitted ``r_j`` times a step lately, with curves ``c_j(t)`` of blocks and their variance ``v_j(t)`` at
the mean, what comes after now holds ``t`` steps from now, if they come independently,

    mean  G(t) = sum of r_j * integral of c_j over 0..t           variance  S2(t) = sum of r_j * integral of (c_j^2 + v_j) over 0..t

``r_j`` is an exponentially forgotten count (``WINDOW_S``), divided by what it would come to had it gone on for ever, over all that is known
or since the tenant's last pause, whichever is more: with the pause in it, who had just come back was expected at half his rate for half a
minute, and a loud one took his room. An admission costs those counts and nothing else. The curve is one forgotten mean of those admitted
last whenever it was asked for.

Fails: arrivals in bursts exceed S. Who comes for the first time is not in it, and who falls silent fades over the window.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import exp, expm1

import numpy as np

from proxy.core.grid import FloatArray, Grid
from proxy.core.lease import Lease

WINDOW_S = 30.0  # a rate of one a second is known to a fifth, and who stopped is forgotten in a minute or two
KNOWN_S_MIN = 3.0  # who came for the first time less than that ago is taken as having been here for so long
FORGET_S = 5.0 * WINDOW_S
SILENT_GAPS = 5.0  # mean gaps: by chance one in 150 is as long, so who is silent for longer has paused
KEEP = 0.8  # of a curve at each look at another: it is that of the last five or so

Draw = Callable[[Lease], FloatArray]  # the sums (4, G) of a lease's forecast as it was when it began


@dataclass(slots=True)
class Line:
    """What was admitted of one tenant at one priority: ``count`` as of ``at_s``, ``moments`` (2, G) of the curves looked at."""

    tenant: str
    priority: int
    first_s: float
    at_s: float
    weight: float = 1.0
    count: float = 0.0
    since_s: float = 0.0  # when it came back from its last pause, and what was admitted since
    since_count: float = 0.0
    last: Lease | None = None  # None: it is in the moments
    moments: FloatArray | None = None

    def admitted(self, lease: Lease) -> None:
        """One was."""
        silent_s = lease.sent_s - self.at_s
        kept = exp(-silent_s / WINDOW_S)
        if not self.count or silent_s > max(KNOWN_S_MIN, SILENT_GAPS / self.per_s(self.at_s)):
            self.since_s, self.since_count = lease.sent_s, 0.0
        self.count, self.since_count = self.count * kept + 1.0, self.since_count * kept + 1.0
        self.at_s, self.weight, self.last = lease.sent_s, lease.demand.tenant_weight, lease

    def per_s(self, now_s: float) -> float:
        """Admissions a second: as on average, or as since its last pause where that is more."""
        most = max(self._counted(self.count, now_s - self.first_s), self._counted(self.since_count, now_s - self.since_s))
        return most * exp((self.at_s - now_s) / WINDOW_S)

    @staticmethod
    def _counted(count: float, known_s: float) -> float:
        return count / (WINDOW_S * -expm1(-max(known_s, KNOWN_S_MIN) / WINDOW_S))

    def curves(self, draw: Draw) -> FloatArray:
        """Mean and second moment of the blocks of one: (2, G)."""
        if self.last is not None:
            mean, variance = draw(self.last)[:2]
            seen = np.stack([mean, mean * mean + variance])
            known = self.moments
            self.moments = seen if known is None or known.shape != seen.shape else KEEP * known + (1.0 - KEEP) * seen
            self.last = None
        assert self.moments is not None, self.tenant  # one was admitted when the line was opened
        return self.moments


@dataclass(slots=True)
class Inflow:
    """All tenants of one model."""

    lines: dict[tuple[str, int], Line] = field(default_factory=dict)
    several: bool = False  # whether there is more than one tenant

    def admitted(self, lease: Lease) -> None:
        """A tenant got a lease."""
        demand = lease.demand
        key = demand.tenant, demand.priority
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = Line(*key, lease.sent_s, lease.sent_s)
            self._count()
        line.admitted(lease)

    def forget(self, now_s: float) -> None:
        """Close the lines of whom nothing came for so long that nothing is expected."""
        silent = [key for key, line in self.lines.items() if now_s - line.at_s > FORGET_S]
        for key in silent:
            del self.lines[key]
        if silent:
            self._count()

    def _count(self) -> None:
        self.several = len({tenant for tenant, _ in self.lines}) > 1

    @staticmethod
    def expected(lines: Iterable[Line], grid: Grid, draw: Draw, now_s: float, steps_per_s: float) -> FloatArray:
        """G and S2 at each interval's end, of these lines: (2, G), in blocks and blocks squared."""
        come = np.zeros((2, len(grid)))
        for line in lines:
            come += line.per_s(now_s) / steps_per_s * line.curves(draw)
        come *= grid.widths
        expected: FloatArray = come.cumsum(axis=1)
        return expected
