"""Percentiles, linear between the two nearest ranks (position p·(n − 1)); without a value there is none, never zero."""

from collections.abc import Iterable


def percentile(values: Iterable[float], share: float) -> float | None:
    """The value below which ``share`` (0 to 1) of the values lie; None without any."""
    ordered = sorted(values)
    if not ordered:
        return None
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
