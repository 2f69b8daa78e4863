"""Jain's index over tenants that are backlogged."""

import pytest

from proxy.core.outcome import Outcome
from proxy.sim.fairness import backlogged_tenants, jain, jain_of_backlogged, joined, served_by_window
from proxy.sim.sim_request import SimRequest, SimResult


def served(tenant: str, arrived_s: float, forwarded_s: float | None, end_s: float, tokens: int = 10) -> SimResult:
    """One answer of ``tokens`` output tokens on no prompt worth speaking of; shed at ``end_s`` where it was never forwarded."""
    request = SimRequest(f"{tenant}{arrived_s}", 1, tokens, tenant=tenant)
    if forwarded_s is None:
        return SimResult(request, arrived_s, Outcome.QUEUE_TIMEOUT, end_s=end_s)
    return SimResult(request, arrived_s, Outcome.COMPLETED, forwarded_s, "r0", forwarded_s, end_s, tokens)


@pytest.mark.parametrize(("shares", "index"), [([1.0, 1.0], 1.0), ([1.0, 0.0], 0.5), ([0.0, 0.0], 1.0), ([3.0, 1.0], 0.8)])
def test_the_index(shares: list[float], index: float) -> None:
    assert jain(shares) == pytest.approx(index)


def test_spans_that_touch_are_one() -> None:
    assert joined([(5.0, 7.0), (0.0, 2.0), (2.0, 3.0), (6.0, 6.5)]) == [(0.0, 3.0), (5.0, 7.0)]


def test_backlogged_is_who_waits_throughout() -> None:
    """``a`` waits from 0 to 30 without a gap, ``b`` has one at 15, ``c`` is refused again and again but wants a place all the time."""
    results = [
        served("a", 0.0, 12.0, 14.0), served("a", 11.0, 30.0, 31.0),
        served("b", 0.0, 15.0, 16.0), served("b", 15.1, 30.0, 31.0),
        *(served("c", float(second), None, second + 1.0) for second in range(30)),
    ]  # fmt: skip
    assert backlogged_tenants(results, 40.0, 10.0) == {0: {"a", "b", "c"}, 1: {"a", "c"}, 2: {"a", "b", "c"}}


def test_an_answer_is_spread_over_its_time() -> None:
    shares = served_by_window([served("a", 0.0, 5.0, 25.0, 10)], 30.0, 10.0)
    whole = sum(shares.values())
    assert {window: share / whole for (window, _), share in shares.items()} == pytest.approx({0: 0.25, 1: 0.5, 2: 0.25})


def test_who_does_not_wait_is_not_in_it() -> None:
    waiting = [served(tenant, 0.0, 20.0, 21.0) for tenant in "ab"]
    equal = [served(tenant, 0.0, 0.0, 10.0) for tenant in "ab"]
    little = [served("c", 1.0, 1.0, 2.0, 1)]
    assert jain_of_backlogged([*waiting, *equal, *little], 30.0, 10.0) == pytest.approx(1.0)
    assert jain_of_backlogged([*waiting, served("a", 0.0, 0.0, 20.0)], 30.0, 10.0) == pytest.approx(0.5)
    assert jain_of_backlogged([*equal, *little], 30.0, 10.0) is None
