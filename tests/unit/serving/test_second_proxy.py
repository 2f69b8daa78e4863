"""What looks like another kvgate before the same replica, and what does not."""

import pytest

from proxy.serving.second_proxy import LOOKS, SEQUENCES_MIN, SecondProxyWatch


def test_as_much_foreign_as_own_for_long_is_told_once_and_ends() -> None:
    watch = SecondProxyWatch()
    assert [watch.looked(20, 18) for _ in range(LOOKS + 5)] == [False] * (LOOKS - 1) + [True] + [False] * 5
    assert watch.suspected
    assert not watch.looked(0, 3), "nothing can be said without load of our own"
    assert watch.suspected
    assert not watch.looked(20, 0)
    assert not watch.suspected


@pytest.mark.parametrize(("ours", "foreign"), [(20, 0), (20, 9), (9, 20), (SEQUENCES_MIN - 1, SEQUENCES_MIN - 1), (0, 30)])
def test_less_much_more_or_next_to_nothing_is_not(ours: int, foreign: int) -> None:
    watch = SecondProxyWatch()
    for _ in range(5 * LOOKS):
        assert not watch.looked(ours, foreign)
    assert not watch.suspected


def test_one_scrape_that_differs_begins_the_count_anew() -> None:
    watch = SecondProxyWatch()
    for _ in range(10):
        for _ in range(LOOKS - 1):
            assert not watch.looked(10, 10)
        assert not watch.looked(10, 0)
