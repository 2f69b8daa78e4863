"""How many requests may be sent to a second replica, so that retries cannot multiply an outage.

A reroute is allowed where it was *earned*, or else within the *allowance*:

    earned       1 for each request that a replica answered, saved up to the requests under way at the last answer, U
    allowance    reroutes that were not earned  <  ratio * requests + floor_per_s * WINDOW_S        over the last ``WINDOW_S`` seconds

where ``requests`` are those sent for the first time. Over any time of ``T`` seconds, attempts at replicas are therefore at most

    requests + answers + U + ratio * (requests, and those of a window before) + floor_per_s * (T + WINDOW_S)

Why answers: a reroute waits for a place that fits, so it overloads nobody; what it may cost is one more attempt that fails. While answers
come as often as failures, trying again serves clients; where they do not, it is an outage, and then ``answers`` is what does not grow.

Regimes. All well: nothing is drawn. One replica of several dies: all that it had and no client had seen a byte of goes elsewhere in one
go, for as much is saved up, however long answers take. A share ``p`` of all attempts fails: reroutes are p / (1 - p) for each answer, so
none is refused while p <= 1/2. All fail: once what was under way has been tried again, replicas get ``1 + ratio`` times what clients
send, and the floor.

Fails: who has just started has saved nothing, and a replica that dies then may have had more than the allowance; those are answered 502
and may be sent again by the client.

Sources: gRPC's retry throttling (proposal A6) and the AWS SDKs' retry quota, which both let answers pay for retries; Finagle's and Envoy's
budgets for the ratio and its floor.
"""

from collections import deque

from proxy.core.policy_relay import Relay

WINDOW_S = 10.0  # long against an answer that streams, short against an outage
SLOT_S = 1.0


class RetryBudget:
    """Requests and reroutes that were not earned, in slots of a second; and what is earned."""

    def __init__(self, ratio: float, floor_per_s: float) -> None:
        self.ratio = ratio
        self.floor_per_s = floor_per_s
        self.taken_total = 0
        self.refused_total = 0
        self._earned = 0
        self._slots: deque[tuple[int, int, int]] = deque()  # which second, requests, reroutes
        self._requests = self._reroutes = 0

    @classmethod
    def of(cls, policy: Relay) -> "RetryBudget":
        """By the policy."""
        return cls(policy.retry_ratio, policy.retries_per_s_min)

    def follow(self, policy: Relay) -> None:
        """Go by this policy from now on."""
        self.ratio, self.floor_per_s = policy.retry_ratio, policy.retries_per_s_min

    def sent(self, now_s: float) -> None:
        """A request is sent for the first time."""
        self._note(now_s, 1, 0)

    def answered(self, under_way: int) -> None:
        """A replica answered a request. ``under_way``: how many have been sent and are not over."""
        self._earned = min(self._earned + 1, under_way)

    def left(self, now_s: float) -> int:
        """Reroutes that are allowed now."""
        self._forget(now_s)
        return self._earned + max(0, int(self.ratio * self._requests + self.floor_per_s * WINDOW_S) - self._reroutes)

    def take(self, now_s: float) -> bool:
        """Draw one; False when there is none."""
        if not self.left(now_s):
            self.refused_total += 1
            return False
        self.taken_total += 1
        if self._earned:
            self._earned -= 1
        else:
            self._note(now_s, 0, 1)
        return True

    def _note(self, now_s: float, requests: int, reroutes: int) -> None:
        slot = int(now_s / SLOT_S)
        if self._slots and self._slots[-1][0] == slot:
            _, others, rerouted = self._slots[-1]
            self._slots[-1] = slot, others + requests, rerouted + reroutes
        else:
            self._forget(now_s)
            self._slots.append((slot, requests, reroutes))
        self._requests += requests
        self._reroutes += reroutes

    def _forget(self, now_s: float) -> None:
        oldest = int((now_s - WINDOW_S) / SLOT_S)
        while self._slots and self._slots[0][0] < oldest:
            _, requests, reroutes = self._slots.popleft()
            self._requests -= requests
            self._reroutes -= reroutes
