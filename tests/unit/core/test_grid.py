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


def test_a_request_that_starts_later_is_looked_up_where_it_will_be_then() -> None:
    """``later[k, j]``: the interval that holds the steps a request has done at the end of j when it starts with k."""
    grid = Grid(2048)
    nobody = len(grid)
    for k in range(len(grid)):
        for j in range(len(grid)):
            if j < k:
                assert grid.later[k, j] == nobody
                continue
            at = grid.later[k, j]
            done = grid.ends[j] - grid.starts[k]
            assert grid.starts[at] < done <= grid.ends[at]


def test_a_request_that_starts_now_is_where_it_is() -> None:
    grid = Grid(2048)
    assert np.array_equal(grid.later[0], np.arange(len(grid)))
