"""Reroutes are bounded by what was answered, by the requests of the last seconds and by a floor, at the edge of each."""

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


def test_an_answer_pays_for_one_and_no_more_are_saved_than_were_under_way() -> None:
    budget = RetryBudget(0.0, 0.0)
    for answers, under_way, left in [(1, 3, 1), (2, 3, 3), (1, 3, 3), (9, 5, 5), (1, 2, 2)]:
        for _ in range(answers):
            budget.answered(under_way)
        assert budget.left(0.0) == left
    assert [budget.take(99.0) for _ in range(3)] == [True, True, False]  # it does not lapse


def test_what_is_earned_is_drawn_before_what_everybody_has() -> None:
    budget = RetryBudget(0.0, 0.1)
    budget.answered(1)
    assert budget.left(0.0) == 2
    assert budget.take(0.0)
    assert budget.left(WINDOW_S + 1.0) == 1
    assert budget.take(WINDOW_S + 1.0)
    assert budget.left(WINDOW_S + 1.0) == 0


def test_an_outage_after_a_good_time_costs_one_more_attempt_for_each_that_was_under_way() -> None:
    """Fifty a second, 400 of them under way, then no replica answers any more; each wants ten reroutes."""
    ratio, floor, under_way, seconds = 0.2, 2.0, 400, 60
    budget, now_s = RetryBudget(ratio, floor), 0.0
    for index in range(5000):
        now_s = index / 50
        budget.sent(now_s)
        budget.answered(under_way)
    sent = requests = 0
    for _ in range(under_way):
        sent += sum(budget.take(now_s) for _ in range(10))
    for index in range(50 * seconds):
        budget.sent(now_s + index / 50)
        requests += 1
        sent += 1 + sum(budget.take(now_s + index / 50) for _ in range(10))
    window = (ratio * 50 + floor) * WINDOW_S
    most = (1.0 + ratio) * requests + floor * seconds + window + under_way
    assert 0.95 * most <= sent <= most


@pytest.mark.parametrize(("failing", "refused"), [(1 / 4, False), (1 / 2, False), (2 / 3, True)])
def test_no_reroute_is_refused_while_half_of_all_attempts_are_answered(failing: float, refused: bool) -> None:
    """By the turn of each replica, so exactly so many of all attempts fail; neither ratio nor floor helps."""
    budget, attempts, failed = RetryBudget(0.0, 0.0), 0, 0
    for _ in range(8):  # what was saved before
        budget.answered(8)
    for request in range(3000):
        budget.sent(request / 10)
        while True:
            attempts += 1
            if failed < failing * attempts - 1e-9:
                failed += 1
                if budget.take(request / 10):
                    continue
                break
            budget.answered(8)
            break
    assert (budget.refused_total > 0) is refused
    assert attempts <= 2 * 3000 + 8
