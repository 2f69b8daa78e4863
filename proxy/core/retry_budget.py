"""How many requests may be sent to a second replica, so that retries cannot multiply an outage.

A reroute is allowed while, over the last ``WINDOW_S`` seconds,

    reroutes < ratio * requests + floor_per_s * WINDOW_S

where ``requests`` are those sent for the first time. So all replicas together never get more than ``1 + ratio`` times what clients send,
and a service with little traffic still has its floor. One that is refused is answered with the failure it met.

Regimes. All well: nothing is drawn. One replica of several dies: what it had that no client had seen a byte of is rerouted in one go,
which the window allows and a token a second would not. All fail: reroutes end at the ratio.

Fails: where answers take much longer than the window, fewer requests were sent in it than are under way, and a dying replica may have
more of them than the floor allows; those are answered 502 and may be sent again by the client.
"""

from collections import deque

WINDOW_S = 10.0  # long against an answer that streams, short against an outage
SLOT_S = 1.0


class RetryBudget:
    """Requests and reroutes in slots of a second."""

    def __init__(self, ratio: float, floor_per_s: float) -> None:
        self.ratio = ratio
        self.floor_per_s = floor_per_s
        self.taken_total = 0
        self.refused_total = 0
        self._slots: deque[tuple[int, int, int]] = deque()  # which second, requests, reroutes
        self._requests = self._reroutes = 0

    def bound(self, ratio: float, floor_per_s: float) -> None:
        """Other bounds from now on."""
        self.ratio, self.floor_per_s = ratio, floor_per_s

    def sent(self, now_s: float) -> None:
        """A request is sent for the first time."""
        self._note(now_s, 1, 0)

    def left(self, now_s: float) -> int:
        """Reroutes that are allowed now."""
        self._forget(now_s)
        return max(0, int(self.ratio * self._requests + self.floor_per_s * WINDOW_S) - self._reroutes)

    def take(self, now_s: float) -> bool:
        """Draw one; False when there is none."""
        if not self.left(now_s):
            self.refused_total += 1
            return False
        self.taken_total += 1
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
