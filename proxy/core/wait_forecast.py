"""How long a request would wait at the end of its line, and how far that forecast is to be trusted.

Formula. ``R`` is the measured rate of the whole queue (``core.drain``; its prior is the ideal one, ``FILL_RATIO`` of the sum over replicas
of usable blocks * steps per second), ``a`` the work ahead of the place and ``o`` the part of it that is the tenant's own (``core.bands``).
The tenant's line moves at a measured rate ``r`` of its own, the prior of which is what the order foretells, ``R * o / a``:

    W = (o + sum of o_k) / (r + sum of r_k)        or a / R where nothing of the tenant's own is ahead

with ``o_k`` and ``r_k`` of the tenant's line at the other proxies ``k`` where it waits too (``core.tenant_accounts``): by a quarter of the
line each of four proxies forecast with larger errors, and promised less for it;
and those of the line who were told to come back before ``W`` is over are let in first (``core.promises``), unless the request is itself one
of them. Who is refused is told to come back when the line and everybody told before have been served, less ``RETURN_EARLY_RATIO`` of
the time it may wait then: so it finds a line it can stand in, and neither it nor the engine waits for the other.

Its error grows as that of a sum of many services does, with the root of the time: each request that was promised a place leaves a sample
``e = (waited - W) / sqrt(W + 1 s)``, and the margin of a new promise is the ``PROMISE_QUANTILE`` of the last ``ERRORS_MAX`` of them,
times its own ``sqrt(W + 1 s)``. One that waited in vain counts as if it had been served in the moment it gave up.

Regimes. New gate: the samples begin with a spread of ``ERROR_PRIOR`` and are replaced as real ones come. Steady: W is unbiased because the
rate is measured on the same charges that are ahead. Fails: in the first seconds of a shift in lengths, or when a replica goes.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from math import sqrt
from statistics import NormalDist

from proxy.core.book import Book
from proxy.core.promises import Promises
from proxy.core.replica import ReplicaPhase
from proxy.core.wait_queue import Waiting, WaitQueue

FILL_RATIO = 0.85  # of the ideal rate, until it was measured: pools are never quite full
PROMISE_QUANTILE = 0.95  # a promise in twenty may be late: the answer to those is a time-out, which costs no engine work
ERRORS_MAX = 128
ERROR_PRIOR = 0.4  # sqrt(s): one standard deviation of a ten-second wait is 1.3 s
ERRORS_PRIOR = 16
RETURN_S_MIN = 1.0
RETURN_EARLY_RATIO = 0.5  # as far from a line that has run dry as from one that is too long
WAIT_S_LEARNED_MIN = 0.5  # shorter forecasts tell of the moment at which one request ends, not of the rate


class WaitForecast:
    """Forecasts waits from a queue and learns from what became of them."""

    def __init__(self, queue: WaitQueue) -> None:
        self.promises = Promises()
        self._queue = queue
        spread = NormalDist(0.0, ERROR_PRIOR)
        self._errors = deque(spread.inv_cdf((index + 0.5) / ERRORS_PRIOR) for index in range(ERRORS_PRIOR))
        self._sorted = sorted(self._errors)

    def __repr__(self) -> str:
        """Reading for people and tests."""
        return f"<WaitForecast margin_10s={self.margin_s(10.0):.2f}s>"

    def rate_per_s(self, books: Iterable[Book]) -> float:
        """Block-steps per second that leave the queue while it waits."""
        pool = list(books)
        moving = [book for book in pool if book.phase is ReplicaPhase.SERVING and not book.saturation.wedge.wedged]
        moving = moving or [book for book in pool if book.phase is ReplicaPhase.STALLED]  # silence tells of no other rate
        ideal = sum(book.spec.usable_blocks * book.clock.rate_per_s for book in moving)
        return max(self._queue.drain.rate_per_s(FILL_RATIO * ideal), 1e-9)

    def wait_s(self, entry: Waiting, books: Iterable[Book], now_s: float) -> float:
        """Forecast wait until ``entry`` starts, from a place that is promised now."""
        work, rate_per_s = self._line(entry, books, now_s)
        if entry.returning:
            return work / rate_per_s
        return self.promises.wait_s(entry.demand.priority, entry.demand.tenant, work, rate_per_s, now_s)

    def _line(self, entry: Waiting, books: Iterable[Book], now_s: float) -> tuple[float, float]:
        """Work ahead of ``entry`` and the rate at which it is done."""
        ahead = self._queue.ahead(entry.demand, entry.rank_s + now_s - entry.enqueued_s)
        rate_per_s = self.rate_per_s(books)
        line = ahead.line
        if line is None or ahead.own + line.charge_elsewhere <= 0.0:
            return ahead.total, rate_per_s
        prior_per_s = rate_per_s * ahead.own / ahead.total if ahead.own > 0.0 else rate_per_s
        return ahead.own + line.charge_elsewhere, max(line.drain.rate_per_s(prior_per_s) + line.elsewhere_per_s, 1e-9)

    def return_s(self, entry: Waiting, books: Iterable[Book], now_s: float) -> float:
        """Seconds after which the client of a refused request should come back; a seat is kept for it then."""
        demand = entry.demand
        work, rate_per_s = self._line(entry, books, now_s)
        wait_s = (work + self.promises.work(demand.priority, demand.tenant)) / rate_per_s
        wait_s = max(RETURN_S_MIN, wait_s - RETURN_EARLY_RATIO * (entry.start_by_s - demand.arrived_s))
        self.promises.told(demand, entry.charge_block_steps, wait_s, now_s)
        return wait_s

    def margin_s(self, wait_s: float) -> float:
        """What to add to a forecast so that ``PROMISE_QUANTILE`` of promises hold."""
        return max(0.0, self._sorted[int(PROMISE_QUANTILE * len(self._sorted))]) * sqrt(wait_s + 1.0)

    @property
    def errors(self) -> tuple[float, ...]:
        """The samples that the margin is taken from, the oldest first."""
        return tuple(self._errors)

    def resume(self, errors: Iterable[float]) -> None:
        """Go on from these ``errors``."""
        self._errors = deque(errors)
        self._sorted = sorted(self._errors)

    def learn(self, entry: Waiting, now_s: float) -> None:
        """A promised request was served, or gave up, ``now_s``."""
        wait_s = entry.forecast_s
        if not entry.promised or wait_s is None or wait_s < WAIT_S_LEARNED_MIN:
            return
        error = (now_s - entry.forecast_at_s - wait_s) / sqrt(wait_s + 1.0)
        self._errors.append(error)
        insort(self._sorted, error)
        if len(self._errors) > ERRORS_MAX:
            del self._sorted[bisect_left(self._sorted, self._errors.popleft())]
