"""What past forecasts were really off by, in their own standard deviations.

Every ``EVERY_STEPS`` the forecast of who is here is kept for 64, 256 and 1,024 steps ahead: mean M, and standard deviation s from the
variance and the common error. When the time has come, what those requests then hold, A, is compared with it:

    e = (A - M) / s        scale = sqrt( (2 * sum of max(e, 0)^2 + PRIOR) / (comparisons + PRIOR) ),  1 .. SCALE_MAX

over about the last ``ERRORS_KEPT`` comparisons of each horizon, the largest of the three. Only errors upwards count, as those preempt; were
the errors normal and of unit variance, the scale would be 1. It multiplies the margin (``core.feedback``) and never lowers it: that a
forecast was too wide shows in its outcomes.

Of several proxies each sees only what became of its own requests, a share ``w`` of the replica's variance, while the margin is for all of
them. What the others' forecasts were off by is taken to be as they said, normal, of unit variance and apart from ours, so that

    e = sqrt(w) * e_own + sqrt(1 - w) * N        2 * E[ max(e, 0)^2 ] = 2 * ((a^2 + b^2) * PHI(a / b) + a * b * phi(a / b))

with ``a`` and ``b`` the two parts counts in the place of ``2 * max(e, 0)^2``, which it is for w = 1. (Compared by itself, a quarter of the
requests has a longer tail upwards than all: four proxies of the same traffic held margins up to twice that of one.)

Regimes. Independent lengths of a known class: 1. Ends that hang together (copies of one prompt, a shift of the traffic that the
class has not learned yet): above 1 until the class has learned. Few comparisons: drawn to 1. Idle: nothing is compared.

Fails: errors of overlapping forecasts hang together, so one surprise is seen several times; requests that do not stream are compared by
the step clock's guess until they end.
"""

from collections import deque
from dataclasses import dataclass
from math import erf, exp, pi, sqrt

import numpy as np

from proxy.core.grid import Grid
from proxy.core.ledger import Lease, Ledger

HORIZONS_STEPS = (64.0, 256.0, 1024.0)
EVERY_STEPS = 64.0
ERRORS_KEPT = 48.0
ERRORS_PRIOR = 24.0
SCALE_MAX = 2.0
SIGMA_BLOCKS_MIN = 2.0  # rounding to blocks alone is off by as much


@dataclass(frozen=True, slots=True)
class _Forecast:
    due_steps: float
    mean_blocks: float
    sigma_blocks: float
    bound_blocks: float  # what it was to stay within, at the margin in force
    leases: tuple[Lease, ...]
    share: float  # of the replica's variance that is theirs


class Calibration:
    """Keeps forecasts of one replica until their time comes. ``scale`` is 1 where they were right."""

    def __init__(self, grid: Grid) -> None:
        self.scale = 1.0
        self.compared = 0
        self.covered_total = [0] * len(HORIZONS_STEPS)  # by horizon: comparisons in which the bound of the forecast held
        self.exceeded_total = [0] * len(HORIZONS_STEPS)
        self._intervals = [min(int(np.searchsorted(grid.ends, steps)), len(grid) - 1) for steps in HORIZONS_STEPS]
        self._waiting: list[deque[_Forecast]] = [deque() for _ in HORIZONS_STEPS]
        self._squares = [0.0] * len(HORIZONS_STEPS)
        self._counts = [0.0] * len(HORIZONS_STEPS)
        self._taken_steps = float("-inf")

    def __repr__(self) -> str:
        """Reading for people and tests."""
        return f"<Calibration scale={self.scale:.2f} compared={self.compared}>"

    @property
    def errors(self) -> tuple[tuple[float, float], ...]:
        """By horizon, the sum of squares and how many comparisons it is of."""
        return tuple(zip(self._squares, self._counts, strict=True))

    def resume(self, errors: tuple[tuple[float, float], ...]) -> None:
        """Go on from these ``errors``."""
        self._squares, self._counts = [square for square, _ in errors], [count for _, count in errors]
        self._settle()

    def look(self, ledger: Ledger, z: float = 0.0) -> None:
        """Compare what is due and keep a new forecast when it is time, with its bound at ``z``; the ledger was just refreshed."""
        steps = ledger.anchor_steps
        compared = self.compared
        for horizon, waiting in enumerate(self._waiting):
            while waiting and waiting[0].due_steps <= steps:
                self._compare(horizon, waiting.popleft(), ledger, steps)
        if self.compared > compared:
            self._settle()
        if steps - self._taken_steps >= EVERY_STEPS and ledger.leases:
            self._taken_steps = steps
            self._take(ledger, steps, z)

    def _take(self, ledger: Ledger, steps: float, z: float) -> None:
        mean, variance, _, common = ledger.sums
        leases = tuple(ledger.leases.values())
        for ahead, interval, waiting in zip(HORIZONS_STEPS, self._intervals, self._waiting, strict=True):
            sigma = sqrt(max(0.0, float(variance[interval])) + float(common[interval]) ** 2)
            sigma, expected = max(sigma, SIGMA_BLOCKS_MIN), float(mean[interval])
            share = self._share(ledger, sigma, interval)
            waiting.append(_Forecast(steps + ahead, expected, sigma, expected + z * sigma, leases, share))

    @staticmethod
    def _share(ledger: Ledger, sigma_blocks: float, interval: int) -> float:
        if ledger.peers is None:
            return 1.0
        _, variance, _, common = ledger.totals[:, interval].tolist()
        everybodys = float(max(variance + common * common, SIGMA_BLOCKS_MIN * SIGMA_BLOCKS_MIN))
        return min(1.0, sigma_blocks * sigma_blocks / everybodys)

    def _compare(self, horizon: int, forecast: _Forecast, ledger: Ledger, steps: float) -> None:
        held = sum(
            ledger.blocks_at(lease.demand, ledger.tokens_out(lease, steps)) for lease in forecast.leases if not lease.ended
        )
        square = square_above((held - forecast.mean_blocks) / forecast.sigma_blocks, forecast.share)
        keep = 1.0 - 1.0 / ERRORS_KEPT
        self._squares[horizon] = keep * self._squares[horizon] + square
        self._counts[horizon] = keep * self._counts[horizon] + 1.0
        self.compared += 1
        (self.covered_total if held <= forecast.bound_blocks else self.exceeded_total)[horizon] += 1

    def _settle(self) -> None:
        seen = zip(self._squares, self._counts, strict=True)
        ratios = ((square + ERRORS_PRIOR) / (count + ERRORS_PRIOR) for square, count in seen)
        self.scale = min(SCALE_MAX, max(1.0, sqrt(max(ratios))))

    def new_epoch(self) -> None:
        """The engine restarted: what was forecast for the old one will not come."""
        for waiting in self._waiting:
            waiting.clear()
        self._taken_steps = float("-inf")


def square_above(error: float, share: float) -> float:
    """Twice the expected square above zero of a sum's error, in standard deviations, of which ``error`` is that of a ``share`` of its
    variance.
    """
    if share >= 1.0:
        above = max(0.0, error)
        return 2.0 * above * above
    ours, others = sqrt(share) * error, sqrt(1.0 - share)
    ratio = ours / others
    below = (1.0 + erf(ratio / sqrt(2.0))) / 2.0
    density = exp(-ratio * ratio / 2.0) / sqrt(2.0 * pi)
    return 2.0 * ((ours * ours + others * others) * below + ours * others * density)
