"""Percentiles of counts in buckets are within half a bucket of the true ones."""

from collections import Counter
from math import exp
from random import Random

import pytest

from proxy.core.log_buckets import LEAST, bucket_of, percentile_of


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.99, 1.0])
def test_percentiles_are_near(share: float) -> None:
    random = Random(1)
    values = sorted(exp(random.gauss(0.0, 2.0)) for _ in range(5000))
    counts = Counter(map(bucket_of, values))
    true = values[max(0, -int(-share * len(values) // 1) - 1)]
    assert percentile_of(counts, share) == pytest.approx(true, rel=0.03)


def test_nothing_and_the_edges() -> None:
    assert percentile_of({}, 0.5) is None
    assert bucket_of(0.0) == bucket_of(-1.0) == bucket_of(LEAST)
    assert percentile_of({bucket_of(2.0): 1}, 0.0) == pytest.approx(2.0, rel=0.03)
    assert bucket_of(1.0) == 0
    assert bucket_of(1.0499) == 0
    assert bucket_of(1.0501) == 1
