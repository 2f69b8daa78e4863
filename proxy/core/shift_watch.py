"""Whether a class's outputs have become longer or shorter than what was learned of them.

Formula. Ends seen minus ends expected is a martingale while the class keeps its law. What was expected is the hazard that everybody went
through, those who ended and those under way:

    surplus  = ends - ( sum of H(length) over completions + H(tokens out) of those under way, now less at the last shift )
    drift    : |surplus| > SHIFT_SIGMA * sqrt( expected + expected^2 / D )           D ends speak for H itself

(Counting completions alone, a pool that has just filled seems to shift without end: the first to complete are the short ones, and what the
others have already survived is not counted. A pool of 150 long outputs shifted 212 times in 2,500 requests.)

On a drift the caller keeps ``SHIFT_KEEP`` of the history. Those under way lived mostly under the old law, so they too count as little as
that, and more again with each completion, until as many have completed as were under way.

Fails: a class whose requests come in two alternating kinds drifts at each change; what tells them apart should be in the class.
"""

from collections.abc import Sequence
from math import sqrt

import numpy as np

from proxy.core.grid import FloatArray

SHIFT_SIGMA = 4.0
SHIFT_EXPECTED_MIN = 10.0
SHIFT_ENDS_MIN = 20.0
SHIFT_KEEP = 0.2
WINDOW_ENDS = 700.0  # a drift that takes longer is followed by forgetting


class ShiftWatch:
    """By row of the survival model. The first row is there from the start."""

    def __init__(self) -> None:
        self._surplus = [0.0]
        self._expected = [0.0]
        self._hazard = [0.0]  # of those under way, when the hazards were last made
        self._hazard_base = [0.0]  # the same at the last shift
        self._weight = [1.0]  # of those under way
        self._running = [0.0]

    def __repr__(self) -> str:
        """Counts for people and tests."""
        return f"<ShiftWatch rows={len(self._surplus)}>"

    def new_row(self) -> None:
        """A class more."""
        for values in (self._surplus, self._expected, self._hazard, self._hazard_base, self._running):
            values.append(0.0)
        self._weight.append(1.0)

    def weights(self, live: FloatArray) -> FloatArray:
        """What those under way count, (rows, 1). ``live`` is how often each bin was passed by them, (rows, bins)."""
        self._running = live.max(axis=1, initial=0.0).tolist()
        return np.asarray(self._weight)[:, None]

    def under_way(self, hazard: FloatArray) -> None:
        """Cumulative hazard that those under way have gone through, by row."""
        self._hazard = hazard.tolist()

    def first_drift(
        self, row: int, expected: Sequence[float], natural: Sequence[bool], ends: float, keep: float
    ) -> tuple[int | None, float]:
        """Take in completions of a class, of cumulative hazards ``expected``, up to the first at which it has shifted.

        ``ends`` speak for its hazards; each completion keeps ``keep`` of them and adds its own. Returns which one it was, None where the
        class has not shifted, and ends as they are then.
        """
        weight, running = self._weight[row], max(1.0, self._running[row])
        hazard, base = self._hazard[row], self._hazard_base[row]
        surplus, total, drifted = self._surplus[row], self._expected[row], None
        for place, (one, ended) in enumerate(zip(expected, natural, strict=True)):
            ends = ends * keep + ended
            weight += (1.0 - weight) / running
            if ends < SHIFT_ENDS_MIN:  # still learning: what it is compared with is the prior, which everything differs from
                surplus, total, base = 0.0, 0.0, hazard
                continue
            surplus += ended - one
            total += one
            grown = hazard - base
            seen = total + grown if grown > 0.0 else total
            if seen < SHIFT_EXPECTED_MIN:
                continue
            # The expectation itself rests on a finite number of ends, which adds its own relative error of 1 / sqrt(ends).
            if abs(surplus - grown) > SHIFT_SIGMA * sqrt(seen + seen**2 / ends):
                weight, surplus, total, base, drifted = SHIFT_KEEP, 0.0, 0.0, hazard, place
                break
            if seen > WINDOW_ENDS:
                surplus, total, base = 0.5 * surplus, 0.5 * total, base + 0.5 * grown
        self._weight[row], self._hazard_base[row], self._surplus[row], self._expected[row] = weight, base, surplus, total
        return drifted, ends
