"""Counts of positive values in buckets that each are five per cent wide, so that percentiles of sums of many counts can be told.

Formula: bucket i holds [1.05^i, 1.05^(i+1)) of the unit; a percentile is told as its bucket's geometric mean, at most 2.5 % off. Values
below ``LEAST`` count as it. Fails: nothing finer than a bucket is known.
"""

from collections.abc import Mapping
from math import ceil, floor, log

WIDTH = 1.05
LEAST = 1e-6
_LOG_WIDTH = log(WIDTH)


def bucket_of(value: float) -> int:
    """The bucket that holds ``value``."""
    return floor(log(max(value, LEAST)) / _LOG_WIDTH)


def percentile_of(counts: Mapping[int, int], share: float) -> float | None:
    """The value that ``share`` of those counted do not exceed; None of nothing."""
    total = sum(counts.values())
    if not total:
        return None
    left = max(1, ceil(share * total))
    for bucket in sorted(counts):
        left -= counts[bucket]
        if left <= 0:
            return float(WIDTH ** (bucket + 0.5))
    raise AssertionError("the counts add up to their total")
