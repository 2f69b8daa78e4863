"""The grid covers the future without a gap, and knows where a later start lands."""

import numpy as np
import pytest

from proxy.core.grid import Grid

HORIZONS = [1, 16, 17, 512, 513, 4096, 131_072]


@pytest.mark.parametrize("horizon", HORIZONS)
def test_intervals_follow_each_other_from_now_to_the_horizon(horizon: int) -> None:
    grid = Grid(horizon)
    assert grid.starts[0] == 0.0
    assert grid.ends[-1] >= horizon
    assert np.array_equal(grid.starts[1:], grid.ends[:-1])
    assert np.array_equal(grid.widths, grid.ends - grid.starts)
    assert (grid.widths > 0.0).all()
    assert len(grid) == len(grid.starts) == len(grid.ends)


@pytest.mark.parametrize("horizon", HORIZONS)
def test_a_grid_stays_short_however_long_the_context(horizon: int) -> None:
    assert len(Grid(horizon)) < 128


def test_a_request_that_starts_later_is_as_large_as_it_gets_in_each_interval() -> None:
    """``shifted[n, k, j]``: the greatest over all intervals of its own that overlap j when it starts with k; nothing before k."""
    grid = Grid(2048)
    curves = np.random.default_rng(1).random((2, len(grid)))
    shifted = grid.shifted(curves)
    for k in range(len(grid)):
        for j in range(len(grid)):
            begun, done = grid.starts[j] - grid.starts[k], grid.ends[j] - grid.starts[k]
            own = (grid.starts < done) & (grid.ends > begun)
            assert grid.past[k, j] == (j < k)
            expected = np.zeros(2) if j < k else curves[:, own].max(axis=1)
            assert np.array_equal(shifted[:, k, j], expected), (k, j)


def test_a_request_that_starts_now_is_where_it_is() -> None:
    grid = Grid(2048)
    curves = np.random.default_rng(2).random((1, len(grid)))
    assert np.array_equal(grid.shifted(curves)[:, 0], curves)


def test_a_request_shorter_than_a_far_interval_is_not_lost_in_it() -> None:
    """It begins and ends within one: read at that interval's end alone it would hold nothing, and fit in beside a full pool."""
    grid = Grid(36_864)
    wide = int(np.flatnonzero(grid.widths > 200.0)[0])
    curve = np.where(grid.ends <= 96.0, 2_000.0, 0.0)[None]
    assert grid.shifted(curve)[0, wide, wide] == 2_000.0
