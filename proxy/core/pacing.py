"""Spacing of ends, so that equal requests do not make a wave.

Equal requests admitted together grow together and end together: the pool is full at their end and half empty on average, and everybody
else waits for that end. What hurts is that they *end* together, so that is what is spaced. If everybody were like a candidate of
token-time ``w`` (block-steps) that will hold ``u`` blocks at its end, the pool would turn over ``usable * u / w`` blocks per step. It may
go while the blocks certain to come free around its own end stay below that rate:

    blocks of the others ending within W before (or after) its cap + u / 2   <=   W * usable * u / (w * PACE_RATIO)

``W`` is a few spacings, ``w / usable`` steps each. Only ends at the cap count, each with the probability of reaching it, and only for a
candidate that may well reach its own (``REACH_MIN``): ends that the model chooses itself are spread out already, and
requests with different caps end apart. (Greedy admission of a wave took 1.13 x the time
of direct vLLM, spacing its starts 1.08 x: reference prototype.md; spacing the starts of mixed lengths costs a tenth of the throughput,
spacing their ends nothing.)

It applies only when not everything fits at once: when running plus queued demand exceeds the pools, or for a moment
(``BURST_HOLD_S``) when a burst of arrivals (``BURST_ARRIVALS`` within ``BURST_WINDOW_S``) is filling a pool beyond ``BURST_FILL_RATIO``
so fast that it is about to: by the time the first one does not fit, the wave would be in. A burst that is mostly one tenant's paces that
tenant alone: the others who come at that moment are not the wave. Where no tenant has most of it, it takes ``BURST_ARRIVALS_OF_SEVERAL``:
single requests of four tenants come as close together by chance, twenty a second do every few seconds, and each cost somebody 0.1 s.
"""

from collections import deque

from proxy.core.grid import FloatArray

PACE_RATIO = 0.9  # a little faster than the pool can turn over: the forecast peak stays the limit, not the pace
WINDOW_SPACINGS = 3.0
REACH_MIN = 0.25
BURST_FILL_RATIO = 0.25
BURST_ARRIVALS = 4
BURST_ARRIVALS_OF_SEVERAL = 8
BURST_WINDOW_S = 0.05
BURST_HOLD_S = 0.1


class BurstWatch:
    """Whether requests are arriving in a burst just now, and whose they are."""

    __slots__ = ("_arrivals", "_burst_s", "_whose")

    def __init__(self) -> None:
        self._arrivals: deque[tuple[float, str]] = deque(maxlen=BURST_ARRIVALS_OF_SEVERAL)
        self._burst_s = float("-inf")
        self._whose: str | None = None  # None: several tenants'

    def arrived(self, now_s: float, tenant: str) -> None:
        """One request arrived."""
        arrivals = self._arrivals
        arrivals.append((now_s, tenant))
        if len(arrivals) < BURST_ARRIVALS or now_s - arrivals[-BURST_ARRIVALS][0] >= BURST_WINDOW_S:
            return
        names = [name for _, name in arrivals]
        whose = _of_most(names[-BURST_ARRIVALS:])
        if whose is None:
            if len(arrivals) < BURST_ARRIVALS_OF_SEVERAL or now_s - arrivals[0][0] >= BURST_WINDOW_S:
                return
            whose = _of_most(names)
        self._burst_s, self._whose = now_s, whose

    def active(self, now_s: float, tenant: str) -> bool:
        """Whether the last burst is still to be reckoned with for one of this tenant."""
        return now_s - self._burst_s < BURST_HOLD_S and self._whose in (None, tenant)


def _of_most(names: list[str]) -> str | None:
    """Who is more than half of them."""
    most = max(names, key=names.count)
    return most if names.count(most) > len(names) / 2 else None


class CapEnds:
    """When blocks come free because requests reach their caps: steps from now, blocks times probability, in any order."""

    __slots__ = ("_blocks", "_steps")

    def __init__(self, steps: FloatArray, blocks: FloatArray) -> None:
        self._steps, self._blocks = steps, blocks

    def blocks_between(self, first: float, last: float) -> float:
        """Blocks that come free from step ``first`` to step ``last``, both included."""
        between = (self._steps >= first) & (self._steps <= last)
        return float(self._blocks.dot(between))

    def crowded(self, end_steps: float, end_blocks: float, block_steps: float, usable_blocks: int) -> bool:
        """Whether too many others end around ``end_steps`` for a candidate of ``block_steps`` that then frees ``end_blocks``.

        ``end_blocks`` is weighed with the probability of getting there, as those of the others are.
        """
        window = WINDOW_SPACINGS * block_steps / max(1, usable_blocks)
        least = WINDOW_SPACINGS * end_blocks / PACE_RATIO
        before = self.blocks_between(end_steps - window, end_steps)
        if before + end_blocks / 2.0 > least:  # mostly those who went before it end before it
            return True
        return self.blocks_between(end_steps, end_steps + window) + end_blocks / 2.0 > least
