"""Clients that come back when they were told to."""

import pytest

from proxy.core.outcome import Outcome
from proxy.sim.returning import LATE_S_MAX, Returning, original
from proxy.sim.sim_request import SimRequest, SimResult


def refused(name: str, retry_after_s: float | None, outcome: Outcome = Outcome.QUEUE_TIMEOUT) -> SimResult:
    return SimResult(SimRequest(name, 100, 50, tenant="a"), 1.0, outcome, retry_after_s=retry_after_s, end_s=2.0)


@pytest.mark.parametrize("told_s", [1.0, 7.3, 40.0])
def test_they_come_within_a_second_of_what_the_answer_says(told_s: float) -> None:
    """Jitter adds up to a quarter, and the header is rounded up to whole seconds."""
    comes = [Returning(seed).again(refused("q", told_s), 2.0) for seed in range(50)]
    times = [one.arrival_s - 2.0 for one in comes if one is not None]
    assert len(times) == 50
    assert min(times) >= told_s
    assert max(times) <= min(59.0, told_s + max(0.25 * told_s, 0.25) + 1.0) + LATE_S_MAX
    assert max(times) - min(times) > 0.5


def test_they_send_the_same_under_the_next_number() -> None:
    clients = Returning(1)
    first = clients.again(refused("q", 3.0), 2.0)
    assert first is not None
    second = clients.again(SimResult(first, 9.0, Outcome.QUEUE_FULL, retry_after_s=3.0, end_s=9.0), 9.0)
    assert second is not None
    assert (first.request_id, second.request_id) == ("q~1", "q~2")
    assert (second.prompt_tokens, second.output_tokens, second.tenant) == (100, 50, "a")
    assert original(second).request_id == "q"
    assert clients.returned == ["q~1", "q~2"]


@pytest.mark.parametrize(
    "result",
    [refused("q", 60.0), refused("q", None), refused("q", 3.0, Outcome.NEVER_FITS), refused("q~8", 3.0)],
    ids=["longer than clients obey", "no advice", "never fits", "tired"],
)
def test_they_leave_for_good(result: SimResult) -> None:
    assert Returning(1).again(result, 2.0) is None


def test_some_do_not_come_back() -> None:
    comes = [Returning(1, share=0.3).again(refused(f"q{index}", 3.0), 2.0) for index in range(500)]
    assert sum(one is not None for one in comes) / 500 == pytest.approx(0.3, abs=0.07)
