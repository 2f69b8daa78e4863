"""Histograms out of expositions: quantiles as Prometheus computes them, and what happened between two scrapes."""

from math import inf

import pytest

from proxy.wire.histogram import Histogram, HistogramReader

TEXT = b"""# TYPE x_seconds histogram
x_seconds_bucket{engine="0",le="1.0"} 1
x_seconds_bucket{engine="0",le="2.0"} 3
x_seconds_bucket{engine="0",le="+Inf"} 4
x_seconds_sum{engine="0"} 9.5
x_seconds_count{engine="0"} 4
x_seconds_bucket{engine="1",le="1.0"} 0
x_seconds_bucket{engine="1",le="2.0"} 4
x_seconds_bucket{engine="1",le="+Inf"} 4
x_seconds_sum{engine="1"} 6.5
y_total_bucket{le="+Inf"} 2
"""


def test_engines_are_added_up_and_what_has_no_sum_is_left_out() -> None:
    found = HistogramReader(("x_seconds", "y_total", "z")).read(TEXT)
    assert found == {"x_seconds": Histogram((1.0, 2.0, inf), (1.0, 7.0, 8.0), 16.0)}
    assert found["x_seconds"].mean == 2.0


def test_quantiles_are_linear_in_their_bucket_and_stop_at_the_last_bound() -> None:
    histogram = Histogram((1.0, 2.0, inf), (1.0, 7.0, 8.0), 16.0)
    assert histogram.quantile(0.125) == 1.0
    assert histogram.quantile(0.5) == pytest.approx(1.5)
    assert histogram.quantile(1.0) == 2.0
    assert Histogram((1.0, inf), (0.0, 0.0), 0.0).quantile(0.5) is None


def test_the_difference_of_two_scrapes_and_a_restart_between_them() -> None:
    earlier = Histogram((1.0, inf), (2.0, 3.0), 5.0)
    assert Histogram((1.0, inf), (2.0, 5.0), 11.0).since(earlier) == Histogram((1.0, inf), (0.0, 2.0), 6.0)
    young = Histogram((1.0, inf), (1.0, 1.0), 0.5)
    assert young.since(earlier) is young
    assert young.since(None) is young
