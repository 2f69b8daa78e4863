"""Recorded requests: played as they came, faster or slower, or as the supply of a closed loop."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads.arrival_times import checked_rate
from proxy.sim.workloads.trace_text import TraceError
from proxy.sim.workloads.workload import LengthStats, length_stats


class Trace:
    """Requests in order of arrival, the first at second 0. ``left_out`` are those of the recording that are not played.

    ``block_size`` is that of the engines that the requests' block hashes are made for. Raises TraceError for a trace without requests.
    """

    load_ratio: float | None = None

    def __init__(self, name: str, requests: Sequence[SimRequest], block_size: int, left_out: int = 0) -> None:
        if not requests:
            raise TraceError(f"{name}: no request in it" + (f" ({left_out} left out)" if left_out else ""))
        in_order = sorted(requests, key=lambda one: one.arrival_s)
        start_s = in_order[0].arrival_s
        self.name = name
        self.requests = tuple(replace(one, arrival_s=one.arrival_s - start_s) if start_s else one for one in in_order)
        self.block_size = block_size
        self.left_out = left_out
        self._closed = iter(self.requests)

    @property
    def rate_per_s(self) -> float | None:
        """Requests per second from the first to the last; None when all came at once."""
        span_s = self.requests[-1].arrival_s
        return len(self.requests) / span_s if span_s else None

    @cached_property
    def stats(self) -> LengthStats:
        """Means over all requests. No prompt token counts as shared by all."""
        return length_stats(self.requests, block_size=self.block_size)

    def next_request(self, now_s: float) -> SimRequest | None:
        """Next in order, whatever its time was; None after the last."""
        request = next(self._closed, None)
        return None if request is None else replace(request, arrival_s=now_s)

    def arrivals(self, rate_per_s: float | None = None) -> Iterator[SimRequest]:
        """Play the recording, its times stretched or compressed to a mean rate."""
        if rate_per_s is None:
            return iter(self.requests)
        recorded = self.rate_per_s
        if recorded is None:
            raise ValueError(f"{self.name}: all requests came at once, so there is no rate to change")
        return iter(self.scaled(checked_rate(rate_per_s) / recorded).requests)

    def follow_up(self, request: SimRequest, ended_s: float) -> SimRequest | None:  # noqa: ARG002 - the recording has all arrivals
        """Return None: later turns of a session are in the recording, at their own times."""
        return None

    def scaled(self, rate_factor: float) -> "Trace":
        """Return the same requests, coming ``rate_factor`` times as fast."""
        factor = checked_rate(rate_factor)
        requests = [replace(one, arrival_s=one.arrival_s / factor) for one in self.requests]
        return Trace(self.name, requests, self.block_size, self.left_out)

    def fitting(self, context_tokens: int) -> "Trace":
        """Leave out requests whose prompt and output do not fit a context. Raises TraceError when none does."""
        kept = [one for one in self.requests if one.prompt_tokens + one.length <= context_tokens]
        return Trace(self.name, kept, self.block_size, self.left_out + len(self.requests) - len(kept))
