"""Spacing of ends: what comes free when, what is crowded, and when arrivals are a burst."""

import numpy as np
import pytest

from proxy.core.pacing import (
    BURST_ARRIVALS,
    BURST_ARRIVALS_OF_SEVERAL,
    BURST_HOLD_S,
    BURST_WINDOW_S,
    PACE_RATIO,
    WINDOW_SPACINGS,
    BurstWatch,
    CapEnds,
)


def ends(*pairs: tuple[float, float]) -> CapEnds:
    steps, blocks = np.asarray(pairs, dtype=np.float64).reshape(-1, 2).T
    return CapEnds(steps, blocks)


@pytest.mark.parametrize(
    ("first", "last", "blocks"), [(0, 9, 0), (10, 10, 3), (10, 20, 8), (11, 30, 12), (0, 100, 15), (31, 99, 0)]
)
def test_blocks_that_come_free_between_two_steps(first: float, last: float, blocks: float) -> None:
    assert ends((20, 5), (10, 3), (30, 7)).blocks_between(first, last) == blocks


def test_nobody_ends_in_an_empty_replica() -> None:
    assert ends().blocks_between(0, 1e9) == 0.0
    assert not ends().crowded(100, 10, 1000, 100)


def test_the_rate_of_ends_is_bounded_by_the_pools_turnover() -> None:
    """At most W * usable * u / (w * PACE_RATIO) blocks end within W of the candidate, half of its own counted."""
    usable, held, block_steps, at = 100, 10.0, 1000.0, 500.0
    window = WINDOW_SPACINGS * block_steps / usable
    limit = window * usable * held / (block_steps * PACE_RATIO) - held / 2.0
    for offset in (-window, 0.0, window):
        assert not ends((at + offset, limit - 0.01)).crowded(at, held, block_steps, usable)
        assert ends((at + offset, limit + 0.01)).crowded(at, held, block_steps, usable)
    for offset in (-window - 1.0, window + 1.0):
        assert not ends((at + offset, 1e6)).crowded(at, held, block_steps, usable)


def test_each_side_is_judged_by_itself() -> None:
    usable, held, block_steps, at = 100, 10.0, 1000.0, 500.0
    one_side = WINDOW_SPACINGS * held / PACE_RATIO - held / 2.0 - 0.01
    assert not ends((at - 1, one_side), (at + 1, one_side)).crowded(at, held, block_steps, usable)


@pytest.mark.parametrize(("tenants", "arrivals"), [("a", BURST_ARRIVALS), ("abcd", BURST_ARRIVALS_OF_SEVERAL)])
def test_arrivals_close_together_are_a_burst_for_a_moment(tenants: str, arrivals: int) -> None:
    """Single requests of several tenants come as close together as four of one by chance: of them it takes more."""
    watch = BurstWatch()
    for index in range(arrivals):
        assert not watch.active(10.0, "a")
        watch.arrived(10.0 + index * BURST_WINDOW_S / (2 * arrivals), tenants[index % len(tenants)])
    assert watch.active(10.0 + BURST_WINDOW_S, "a")
    assert watch.active(10.0 + BURST_WINDOW_S, "e") == (len(tenants) > 1), "several tenants' are a wave for whoever comes"
    assert not watch.active(10.0 + BURST_WINDOW_S + BURST_HOLD_S, "a")


def test_a_burst_of_several_is_his_who_sent_most_of_it() -> None:
    watch = BurstWatch()
    for tenant in "abacaada":
        watch.arrived(10.0, tenant)
    assert watch.active(10.0, "a")
    assert not watch.active(10.0, "d")


def test_several_who_come_within_longer_than_the_window_are_no_burst() -> None:
    watch = BurstWatch()
    for index in range(3 * BURST_ARRIVALS_OF_SEVERAL):
        watch.arrived(now := 10.0 + index * BURST_WINDOW_S / (BURST_ARRIVALS_OF_SEVERAL - 1.5), "abcd"[index % 4])
        assert not watch.active(now, "abcd"[index % 4])


def test_one_tenants_burst_is_its_own() -> None:
    watch = BurstWatch()
    for index in range(BURST_ARRIVALS):
        watch.arrived(10.0, "b" if index == 1 else "a")
    assert watch.active(10.0, "a")
    assert not watch.active(10.0, "b")


def test_steady_arrivals_are_none() -> None:
    watch = BurstWatch()
    for index in range(50):
        watch.arrived(now := index * BURST_WINDOW_S / (BURST_ARRIVALS - 1.5), "a")
        assert not watch.active(now, "a")
