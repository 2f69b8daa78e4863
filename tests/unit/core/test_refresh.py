"""The forecast of everybody, drawn some rows at a time."""

import tracemalloc

import numpy as np
import pytest

from proxy.core import refresh
from proxy.core.grid import FloatArray, Grid
from proxy.core.kv_shape import KvShape
from proxy.core.lease_rows import DENSE_RATIO, LeaseRows
from proxy.core.refresh import ROWS_AT_ONCE, refresh_rows
from proxy.core.survival import SurvivalModel

GRID = Grid(8192)


class Owner:
    """Of a row."""

    output_tokens = 0
    placed = True


def rows_of(count: int, live_ratio: float) -> LeaseRows:
    """So many rows, some of them free again, of all kinds: with and without tokens out, copies, delay."""
    random, rows = np.random.default_rng(7), LeaseRows(len(GRID))
    for _ in range(count):
        row = rows.take(Owner())
        copies, delay = 1 if random.random() < 0.9 else 3, random.choice([0.0, 2.0])
        out = random.integers(0, 300)
        rows.fields[:, row] = random.integers(1, 4000), out, out + random.integers(1, 4000), copies, delay, True
    for row in range(count):
        if random.random() >= live_ratio:
            rows.free([row])
    return rows


def refreshed(rows: LeaseRows, *, thorough: bool) -> tuple[FloatArray, ...]:
    """What a refresh leaves."""
    model, sums = SurvivalModel(), np.zeros((4, len(GRID)))
    model.rebuild([])
    refresh_rows(rows, sums, GRID, model, KvShape(16), moved_steps=3.0, thorough=thorough)
    return sums, rows.curves[:, : rows.used], rows.alive[: rows.used], rows.cap_ends[:, : rows.used]


@pytest.mark.parametrize("live_ratio", [1.0, DENSE_RATIO + 0.1, DENSE_RATIO - 0.2])
@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize("at_once", [1, 7, ROWS_AT_ONCE])
def test_some_rows_at_a_time_are_the_same_to_the_last_bit(
    live_ratio: float, at_once: int, *, thorough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Decisions do not depend on how many rows were drawn together."""
    count = 2 * ROWS_AT_ONCE + 1
    monkeypatch.setattr(refresh, "ROWS_AT_ONCE", count)
    together = refreshed(rows_of(count, live_ratio), thorough=thorough)
    monkeypatch.setattr(refresh, "ROWS_AT_ONCE", at_once)
    for one, other in zip(together, refreshed(rows_of(count, live_ratio), thorough=thorough), strict=True):
        np.testing.assert_array_equal(one, other)
    assert together[0][:3, 1].all()


def test_what_it_takes_does_not_grow_with_the_rows() -> None:
    """What a refresh of thousands of rows took would stay with the process for good."""
    taken_bytes = []
    for count in (2 * ROWS_AT_ONCE, 16 * ROWS_AT_ONCE):
        rows = rows_of(count, 1.0)
        refreshed(rows, thorough=True)
        tracemalloc.start()
        refreshed(rows, thorough=True)
        taken_bytes.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    row_bytes = 8 * len(GRID)
    assert taken_bytes[1] - taken_bytes[0] < 14 * ROWS_AT_ONCE * row_bytes / 10, taken_bytes
