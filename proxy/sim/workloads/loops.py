"""A workload as the source of one world: clients that send when it is time, or clients that wait for each other.

Generators are endless; ``requests_max`` ends them. It counts what clients send of their own accord, so a session that began goes on.
"""

from itertools import islice
from math import inf

from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads.workload import Workload


class OpenLoop:
    """Arrivals at a mean rate (None: as recorded), until ``until_s`` or ``requests_max`` of them."""

    def __init__(
        self, workload: Workload, rate_per_s: float | None = None, *, until_s: float = inf, requests_max: int | None = None
    ) -> None:
        self._workload = workload
        self._arrivals = islice(workload.arrivals(rate_per_s), requests_max)
        self._until_s = until_s

    def next_request(self, now_s: float) -> SimRequest | None:
        """Return the next arrival, which may lie ahead of ``now_s``."""
        del now_s
        request = next(self._arrivals, None)
        return request if request is not None and request.arrival_s < self._until_s else None

    def follow_up(self, request: SimRequest, now_s: float) -> SimRequest | None:
        """Return the session's next turn."""
        return self._workload.follow_up(request, now_s)


class ClosedLoop:
    """The next request whenever a client is free, until ``requests_max`` of them or ``until_s``."""

    def __init__(self, workload: Workload, *, until_s: float = inf, requests_max: int | None = None) -> None:
        self._workload = workload
        self._left = inf if requests_max is None else requests_max
        self._until_s = until_s

    def next_request(self, now_s: float) -> SimRequest | None:
        """Return the next request, arriving now."""
        if not self._left or now_s >= self._until_s:
            return None
        self._left -= 1
        return self._workload.next_request(now_s)

    def follow_up(self, request: SimRequest, now_s: float) -> SimRequest | None:
        """Return the session's next turn."""
        return self._workload.follow_up(request, now_s)
