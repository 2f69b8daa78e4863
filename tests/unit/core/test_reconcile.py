"""The bias moves only by what lies outside the interval, rests while the engine tells of something else, and never goes below zero."""

import pytest

from proxy.core.reconcile import Reconciler


def settled(bias: float) -> Reconciler:
    """A reconciler whose bias is close to ``bias``."""
    one = Reconciler()
    for _ in range(200):
        one.compare(bias, 0.0, 0.0, frozen=False)
    assert one.bias_blocks == pytest.approx(bias, abs=1e-3)
    return one


@pytest.mark.parametrize("measured", [10.0, 15.0, 20.0])
def test_inside_the_interval_nothing_moves(measured: float) -> None:
    one = Reconciler()
    assert one.compare(measured, 10.0, 20.0, frozen=False) == 0.0
    assert (one.bias_blocks, one.sigma_blocks(100, 0.0, 5.0)) == (0.0, 0.0)


def test_what_lies_above_is_foreign() -> None:
    one = Reconciler()
    assert one.compare(30.0, 10.0, 20.0, frozen=False) == 10.0
    assert 0.0 < one.bias_blocks <= 10.0
    assert one.sigma_blocks(100, 0.0, 5.0) > 0.0


def test_steady_foreign_traffic_is_learned_and_its_spread_fades() -> None:
    one = Reconciler()
    spreads = []
    for _ in range(200):
        one.compare(30.0, 10.0, 20.0, frozen=False)
        spreads.append(one.sigma_blocks(100, 0.0, 5.0))
    assert one.bias_blocks == pytest.approx(10.0, abs=1e-3)
    assert spreads[-1] < 0.01 < spreads[0]


def test_the_interval_moves_with_the_bias() -> None:
    one = settled(10.0)
    assert one.compare(25.0, 10.0, 20.0, frozen=False) == pytest.approx(0.0, abs=1e-2)


def test_bias_goes_down_to_zero_and_no_further() -> None:
    """Shared blocks are counted once already: nothing is left to explain a negative bias."""
    one = settled(10.0)
    for _ in range(200):
        one.compare(0.0, 50.0, 60.0, frozen=False)
        assert one.bias_blocks >= 0.0
    assert one.bias_blocks == 0.0


def test_foreign_traffic_takes_room_at_once_and_gives_it_back_when_two_scrapes_agree() -> None:
    up, down = settled(20.0), settled(20.0)
    up.compare(30.0, 0.0, 0.0, frozen=False)
    assert up.bias_blocks > 20.0 + 0.5 * 10.0
    down.compare(10.0, 0.0, 0.0, frozen=False)
    assert down.bias_blocks == pytest.approx(20.0, abs=1e-3)
    down.compare(10.0, 0.0, 0.0, frozen=False)
    assert 10.0 < down.bias_blocks < 20.0


def test_the_first_comparison_takes_all_that_is_there() -> None:
    """A proxy that starts before a busy engine must not fill the pool a second time while its bias creeps up."""
    one = Reconciler()
    one.compare(80.0, 10.0, 20.0, frozen=True)
    assert one.bias_blocks == 60.0


@pytest.mark.parametrize("odd", [0.0, 100.0])
def test_one_odd_reading_leaves_nothing_behind(odd: float) -> None:
    one = settled(20.0)
    spread = one.sigma_blocks(100, 0.0, 5.0)
    one.compare(odd, 0.0, 0.0, frozen=False)
    assert one.bias_blocks >= 20.0 - 1e-3, "a single reading never makes room"
    one.compare(20.0, 0.0, 0.0, frozen=False)
    assert one.bias_blocks == pytest.approx(20.0, abs=1e-3)
    if odd > 20.0:
        assert one.sigma_blocks(100, 0.0, 5.0) == pytest.approx(spread, abs=1e-2)


def test_a_rise_that_the_next_scrape_bears_out_stays() -> None:
    one = settled(20.0)
    one.compare(60.0, 0.0, 0.0, frozen=False)
    risen = one.bias_blocks
    one.compare(50.0, 0.0, 0.0, frozen=False)
    assert one.bias_blocks == risen, "one scrape below it is no reason to go down"
    one.compare(50.0, 0.0, 0.0, frozen=False)
    assert 45.0 < one.bias_blocks < risen


def test_frozen_gives_nothing_back_and_still_sees_more() -> None:
    """A preempted request reads as less usage: that says nothing of foreign traffic. More usage than we know of does."""
    one = settled(10.0)
    bias, spread = one.bias_blocks, one.sigma_blocks(100, 0.0, 5.0)
    assert one.compare(0.0, 0.0, 0.0, frozen=True) < 0.0
    assert (one.bias_blocks, one.sigma_blocks(100, 0.0, 5.0)) == (bias, spread)
    one.compare(40.0, 0.0, 0.0, frozen=True)
    assert one.bias_blocks > bias


def test_the_spread_grows_with_age_and_is_bounded() -> None:
    one = Reconciler()
    spreads = [one.sigma_blocks(1000, age, 5.0) for age in (0.0, 5.0, 6.0, 8.0, 1e6, 1e9)]
    assert spreads == sorted(spreads)
    assert spreads[0] == spreads[1] == 0.0 < spreads[2] < spreads[3]
    assert spreads[-2] == spreads[-1] < 1000


def test_never_measured_is_not_fresh() -> None:
    """A replica that shows no usage is less certain than one just scraped."""
    one = Reconciler()
    assert one.sigma_blocks(1000, None, 5.0) > one.sigma_blocks(1000, 5.0, 5.0)


def test_a_new_epoch_knows_nothing_of_the_old_traffic() -> None:
    one = settled(10.0)
    one.new_epoch()
    assert (one.bias_blocks, one.outside_blocks, one.sigma_blocks(100, 0.0, 5.0)) == (0.0, 0.0, 0.0)
