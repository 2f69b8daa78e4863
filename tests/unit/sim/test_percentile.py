"""Percentiles by hand."""

import pytest

from proxy.sim.percentile import percentile


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([7.0], 0.99, 7.0),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([1.0, 2.0], 0.5, 1.5),
        ([float(n) for n in range(101)], 0.99, 99.0),
        ([float(n) for n in range(11)], 0.99, 9.9),
        ([2.0, 1.0], 0.0, 1.0),
        ([2.0, 1.0], 1.0, 2.0),
    ],
)
def test_percentiles(values: list[float], share: float, expected: float | None) -> None:
    assert percentile(values, share) == (None if expected is None else pytest.approx(expected))
