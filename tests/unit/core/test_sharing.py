"""One proxy's side of the shared store: its clock, whether it is in touch, its share when it is not."""

import numpy as np
import pytest

from proxy.core.sharing import OFFSET_KEPT_S, StoreClock, Touch, others_apart, share_blocks


def test_the_stores_clock_is_read_at_the_middle_of_the_round_trip() -> None:
    clock = StoreClock()
    clock.heard(105.001, asked_s=5.0, answered_s=5.002)
    assert clock.store_s(6.0) == pytest.approx(106.0)
    assert clock.own_s(106.0) == pytest.approx(6.0)


def test_the_shortest_round_trip_is_believed_until_it_is_old() -> None:
    clock = StoreClock()
    clock.heard(100.001, asked_s=0.0, answered_s=0.002)
    clock.heard(100.9, asked_s=0.5, answered_s=0.9)  # 0.4 s on the way, nearly all of it on the way back or forth
    assert clock.offset_s == pytest.approx(100.0)
    clock.heard(100.9 + OFFSET_KEPT_S, asked_s=0.5 + OFFSET_KEPT_S, answered_s=0.9 + OFFSET_KEPT_S)
    assert clock.offset_s == pytest.approx(100.2)  # drifting apart would be worse than half a round trip
    assert clock.round_trip_s == pytest.approx(0.4)


def test_one_lost_call_among_answered_ones_is_no_outage() -> None:
    touch = Touch()
    assert touch.written()
    touch.answered(asked_s=1.01)
    assert not touch.failed(asked_s=1.0)
    assert touch.sharing


def test_nothing_answered_since_is_an_outage_told_once() -> None:
    touch = Touch()
    assert touch.written()
    assert not touch.written()
    touch.answered(asked_s=0.99)
    assert touch.failed(asked_s=1.0)
    assert not touch.failed(asked_s=1.05)
    assert not touch.sharing
    touch.answered(asked_s=2.0)
    assert not touch.sharing, "an answer is not enough: the rows have to be there"
    assert touch.written()
    assert touch.changes == 3


def test_shares_of_all_that_are_apart_fill_the_pool_and_no_more() -> None:
    held = [10.0, 30.0, 0.0, 25.0]
    shares = [share_blocks(200, 4, placed_blocks=blocks, measured_blocks=sum(held)) for blocks in held]
    assert sum(shares) == pytest.approx(200.0)


def test_what_is_on_its_way_is_not_shared_out_again() -> None:
    share = share_blocks(200, 2, placed_blocks=10.0, measured_blocks=100.0)
    assert share == pytest.approx(10.0 + 50.0), "however much is on its way: it has to keep within these"
    assert share_blocks(200, 2, placed_blocks=10.0, measured_blocks=300.0) == 10.0


def test_with_nothing_measured_each_has_its_part_of_the_pool() -> None:
    assert share_blocks(200, 4, placed_blocks=10.0, measured_blocks=None) == 50.0
    assert share_blocks(200, 4, placed_blocks=70.0, measured_blocks=None) == 70.0


def test_others_out_of_touch_are_a_certain_constant() -> None:
    curves = others_apart(200, 50.0, 5)
    assert np.array_equal(curves, [[150.0] * 5, [0.0] * 5, [150.0] * 5, [0.0] * 5])
    assert not others_apart(200, 250.0, 5).any()
