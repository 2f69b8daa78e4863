"""A robust line through points: the median of all pairwise slopes (Theil-Sen), with Sen's confidence band from Kendall's statistic.

Up to 29 % of the points may be anything without moving it far. The band assumes points that are independent of one another: take means or
medians over times longer than what they have in common. (Sen 1968; no ties in x.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

Z_95 = 1.959964


@dataclass(frozen=True, slots=True)
class Slope:
    """Per unit of x, with the ends of its 95 % band."""

    value: float
    low: float
    high: float


def theil_sen(points: Sequence[tuple[float, float]]) -> Slope:
    """Raises ValueError of fewer than two points."""
    slopes = sorted((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2))
    if not slopes:
        raise ValueError("a slope needs two points")
    count = len(points)
    spread = Z_95 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18.0)
    low = max(0, round((len(slopes) - spread) / 2.0) - 1)
    high = min(len(slopes) - 1, round((len(slopes) + spread) / 2.0))
    return Slope(median(slopes), slopes[low], slopes[high])
