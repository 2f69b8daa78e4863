"""Reroutes are bounded by the requests of the last seconds and by a floor, at the edge of both."""

import pytest

from proxy.core.retry_budget import WINDOW_S, RetryBudget


@pytest.mark.parametrize(
    ("ratio", "floor", "requests", "allowed"), [(0.2, 0.0, 50, 10), (0.2, 1.0, 0, 10), (0.5, 2.0, 7, 23), (0.0, 0.0, 99, 0)]
)
def test_so_many_and_no_more(ratio: float, floor: float, requests: int, allowed: int) -> None:
    budget = RetryBudget(ratio, floor)
    for _ in range(requests):
        budget.sent(1.0)
    assert budget.left(1.0) == allowed
    assert [budget.take(1.5) for _ in range(allowed + 2)] == [True] * allowed + [False] * 2
    assert (budget.taken_total, budget.refused_total) == (allowed, 2)


def test_an_outage_is_not_multiplied() -> None:
    budget, sent = RetryBudget(0.2, 0.0), 0
    for index in range(10_000):  # a hundred a second, every attempt fails, each wants two reroutes
        budget.sent(index / 100)
        sent += 1 + budget.take(index / 100) + budget.take(index / 100)
    assert sent <= 1.2 * 10_000
    assert sent > 1.19 * 10_000


def test_what_was_drawn_is_there_again_after_the_window() -> None:
    budget = RetryBudget(0.0, 0.1)
    assert budget.take(0.0)
    assert not budget.take(WINDOW_S - 0.01)
    assert budget.take(WINDOW_S + 1.0)
