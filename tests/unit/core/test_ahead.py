"""Amounts that bound a request whenever it comes, and one replica's advance of them."""

import numpy as np
import pytest

from proxy.core.ahead import AHEAD_S, LIVES_S, SHUNS_S, Advance, amounts_of, level_blocks, row_of_amounts, within
from proxy.core.grid import FloatArray, Grid
from proxy.core.risk import Risk, peak_of
from proxy.core.shared import Amounts, Load, curves_of, load_of, read_at, row_of

GRID = Grid(4096)
POINTS = len(GRID)
Z = 2.5


def request_row(blocks: float = 10.0, sequences: float = 1.0) -> FloatArray:
    """One that grows to ``blocks`` and ends, with half of it unsure."""
    rise = np.sin(np.linspace(0.0, np.pi, POINTS))
    curves = np.stack((blocks * rise, 0.25 * blocks * blocks * rise, 2.0 * blocks * rise, 0.1 * blocks * rise))
    return row_of(Load(leases=1.0, sequences=sequences, high_blocks=3.0, prefill_tokens=40.0), curves)


def amounts(blocks: float = 10.0, sequences: float = 1.0, *, times: float = 1.0) -> Amounts:
    return tuple(times * amount for amount in amounts_of(request_row(blocks, sequences)))


@pytest.mark.parametrize("steps", [0.0, 1.0, 40.0, 1000.0, 1e6])
def test_amounts_bound_a_request_that_comes_some_steps_later(steps: float) -> None:
    row = request_row()
    ahead = read_at(row_of_amounts(amounts_of(row), POINTS), steps, GRID.ends)
    assert (curves_of(ahead) >= curves_of(row)).all()
    assert load_of(ahead) == Load(leases=1.0, sequences=1.0), "and nothing of it is held, or to be computed, yet"


@pytest.mark.parametrize("many", [0.1, 1.0, 7.0, 1000.0])
def test_a_part_of_amounts_comes_to_as_much_as_is_allowed_and_no_more(many: float) -> None:
    wanted = amounts(times=many)
    kept = within(wanted, 40.0, Z)
    level = level_blocks(kept, Z)
    if level_blocks(wanted, Z) <= 40.0:
        assert kept is wanted
    else:
        assert level == pytest.approx(40.0)
    row = row_of_amounts(kept, POINTS)
    assert peak_of(curves_of(row).copy(), Risk(Z, 0.0, 0.0)) <= 40.0 + 1e-9


def test_amounts_of_variance_alone_are_cut_as_well() -> None:
    unsure = (1.0, 0.0, 16.0, 100.0, 0.0)
    assert level_blocks(within(unsure, 5.0, 1.0), 1.0) <= 5.0


def busy(advance: Advance, count: int, now_s: float = 0.0) -> None:
    for _ in range(count):
        advance.see(amounts(), now_s)


def test_the_first_request_takes_nothing_ahead() -> None:
    advance = Advance("life", 0.0)
    busy(advance, 1)
    assert advance.wants(amounts(), 1000.0, Z, 0.0) is None
    busy(advance, 1, 0.1)
    asked = advance.wants(amounts(), 1000.0, Z, 0.1)
    assert asked is not None
    assert asked == pytest.approx(amounts(times=4.0)), "twice what came lately"


def test_what_was_asked_for_is_granted_to_requests_until_it_is_used_up_or_too_old() -> None:
    advance = Advance("life", 0.0)
    assert not advance.stands
    assert not advance.take(amounts(), 0.0)
    advance.asked = amounts(times=2.0)
    advance.granted(asked_s=1.0)
    assert advance.stands
    assert not advance.take(amounts(10.001), 1.5 + LIVES_S), "too old"
    assert advance.take(amounts(), 1.999)
    assert not advance.take(amounts(10.001), 1.999), "a little more than is left"
    assert not advance.take(amounts(10.0, sequences=2.0), 1.999), "a seat more than is left"
    assert advance.take(amounts(), 1.999)
    assert not advance.take(amounts(0.001), 1.999)
    assert not advance.take(amounts(), 1.0 + LIVES_S)


def test_more_is_asked_for_when_less_than_half_is_left_or_half_of_its_life_is_over() -> None:
    advance = Advance("life", 0.0)
    busy(advance, 4)
    advance.asked = amounts(times=8.0)
    advance.granted(asked_s=0.0)
    assert advance.wants(amounts(), 1000.0, Z, 0.1) is None
    for _ in range(3):
        assert advance.take(amounts(), 0.1)
    assert advance.wants(amounts(), 1000.0, Z, 0.1) is None, "more than half of it is left"
    for _ in range(2):
        assert advance.take(amounts(), 0.1)
    assert advance.wants(amounts(), 1000.0, Z, 0.1) == pytest.approx(amounts(times=5.0))
    advance.asked = amounts(times=5.0)
    assert advance.wants(amounts(), 1000.0, Z, 0.1) is None, "it is asked for already"
    advance.granted(asked_s=0.1)
    assert advance.wants(amounts(), 1000.0, Z, 0.1 + LIVES_S / 2.0 - 0.01) is None
    assert advance.wants(amounts(), 1000.0, Z, 0.11 + LIVES_S / 2.0) == pytest.approx(amounts(times=0.0)), (
        "whether it still stands"
    )


def test_less_traffic_wants_less_and_none_wants_nothing() -> None:
    advance = Advance("life", 0.0)
    busy(advance, 8)
    advance.asked = amounts(times=16.0)
    advance.granted(asked_s=0.0)
    busy(advance, 2, AHEAD_S)
    assert advance.wants(amounts(), 1000.0, Z, LIVES_S / 2.0) == pytest.approx(amounts(times=0.0)), "of eight before still"
    busy(advance, 2, 2.0 * AHEAD_S)
    advance.wants(amounts(), 1000.0, Z, 2.0 * AHEAD_S)
    assert advance.left == pytest.approx(amounts(times=4.0)), "what is too much is left to the next row to give back"
    busy(advance, 1, 2.0 * AHEAD_S + LIVES_S)
    assert advance.wants(amounts(), 1000.0, Z, 2.0 * AHEAD_S + LIVES_S) is None, "nobody came for so long"


def test_a_small_bound_takes_a_part_and_a_smaller_one_nothing() -> None:
    advance = Advance("life", 0.0)
    busy(advance, 4)
    one = level_blocks(amounts(), Z)
    asked = advance.wants(amounts(), 2.0 * one, Z, 0.0)
    assert asked is not None
    assert level_blocks(asked, Z) == pytest.approx(2.0 * one)
    assert advance.wants(amounts(), 0.5 * one, Z, 0.0) is None, "not even one would have room in it"
    assert advance.wants(amounts(), 0.0, Z, 0.0) is None


def test_who_was_refused_does_not_ask_again_at_once() -> None:
    advance = Advance("life", 0.0)
    busy(advance, 4)
    advance.asked = amounts()
    advance.refused(0.2)
    assert advance.asked is None
    assert not advance.stands
    assert advance.wants(amounts(), 1000.0, Z, 0.2 + SHUNS_S - 0.01) is None
    busy(advance, 4, 0.2 + SHUNS_S)
    assert advance.wants(amounts(), 1000.0, Z, 0.2 + SHUNS_S) is not None
    assert "asked=False" in repr(advance)
