"""How fast a line of waiting requests moves, measured while it waits.

Formula. Over the time ``T`` in which somebody waited, admitted work ``A`` (block-steps, as forecast when each request arrived), both
forgotten with the time constant ``WINDOW_S`` of *waiting* time, and what was thought beforehand (``prior_per_s``) as if it had been
seen for ``PRIOR_S`` seconds:

    rate = (PRIOR_S * prior + A) / (PRIOR_S + T)

What enters the line is weighed with the same forecasts as what leaves it, so an error that all forecasts share cancels out. Idle time
says nothing about the rate and changes nothing.

Fails: after the mix of lengths has changed the rate is that of the old mix for about ``WINDOW_S``.
"""

from math import exp

WINDOW_S = 20.0  # a few hundred admissions of a small pool: the count's own error is below a tenth
PRIOR_S = 2.0  # the prior is the ideal rate, which is right within a fifth; a few seconds of evidence outweigh it


class DrainMeter:
    """Work admitted and time waited, forgotten alike."""

    __slots__ = ("_at_s", "seconds", "work")

    def __init__(self) -> None:
        self.work = 0.0
        self.seconds = 0.0
        self._at_s = 0.0

    def lapse(self, now_s: float, *, waited: bool) -> None:
        """Let the time since the last call go by; ``waited`` tells whether somebody did."""
        elapsed_s = now_s - self._at_s
        self._at_s = now_s
        if waited and elapsed_s > 0.0:
            keep = exp(-elapsed_s / WINDOW_S)
            self.work *= keep
            self.seconds = self.seconds * keep + WINDOW_S * (1.0 - keep)

    def admitted(self, work: float) -> None:
        """Somebody of the line got a place."""
        self.work += work

    def rate_per_s(self, prior_per_s: float) -> float:
        """Work per second that leaves the line while it waits."""
        return (PRIOR_S * prior_per_s + self.work) / (PRIOR_S + self.seconds)
