"""Clients that come back when they were told to.

A client that was refused reads the answer as it would stand on the wire (``wire.answers``: jitter, whole seconds, at most 59, "do not
retry"), waits as long as ``Retry-After`` says and up to ``LATE_S_MAX`` more, and sends the same request under the next number of its id.
It leaves for good when it is told not to retry, or after ``returns_max`` returns.

Deterministic for a seed: what a client draws depends on its request's id alone, so one more refusal elsewhere does not change it.
"""

from dataclasses import replace
from random import Random

from proxy.core.outcome import Refusal
from proxy.sim.admission import AGAIN
from proxy.sim.sim_request import SimRequest, SimResult
from proxy.wire.answers import answer

LATE_S_MAX = 1.0
RETURNS_MAX = 8


class Returning:
    """Decides for each refused request whether and when it comes again. ``returned`` are the ids under which they came."""

    def __init__(self, seed: int, *, share: float = 1.0, returns_max: int = RETURNS_MAX) -> None:
        self.returned: list[str] = []
        self._seed = seed
        self._share = share
        self._returns_max = returns_max

    def again(self, result: SimResult, now_s: float) -> SimRequest | None:
        """What the client of a refused request sends next, at its ``arrival_s``; None when it has given up."""
        request = result.request
        rng = Random(f"{self._seed} {request.request_id}")
        jitter, stays, late_s = rng.random(), rng.random() < self._share, LATE_S_MAX * rng.random()
        told_s = retry_after_s(result, jitter)
        name, _, number = request.request_id.partition(AGAIN)
        returns = int(number or 0) + 1
        if told_s is None or not stays or returns > self._returns_max:
            return None
        following = replace(request, request_id=f"{name}{AGAIN}{returns}", arrival_s=now_s + told_s + late_s)
        self.returned.append(following.request_id)
        return following


def retry_after_s(result: SimResult, jitter: float) -> float | None:
    """Seconds of the answer's ``Retry-After``; None where it says that a retry is of no use."""
    assert result.outcome is not None, result
    refusal = Refusal(result.outcome, gate="", message="", retry_after_s=result.retry_after_s)
    headers = dict(answer(refusal, jitter=jitter, brief=True).headers)
    return float(headers[b"retry-after"]) if headers[b"x-should-retry"] == b"true" else None


def original(request: SimRequest) -> SimRequest:
    """The request as it was sent first."""
    return replace(request, request_id=request.request_id.partition(AGAIN)[0])
