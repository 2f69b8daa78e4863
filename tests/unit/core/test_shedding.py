"""Refusals with their numbers, and when a retry is worth its while."""

import pytest

from proxy.core.book import Book
from proxy.core.demand import PromptPart
from proxy.core.outcome import Outcome
from proxy.core.replica import ReplicaPhase
from proxy.core.shedding import RETRY_S_MIN, Shedding
from proxy.core.wait_queue import Waiting, WaitQueue
from tests.support.builders import book, demand


def queue() -> WaitQueue:
    return WaitQueue(requests_max=10, tokens_max=10**6, bytes_max=10**6)


def waiting(name: str, charge: float, deadline_s: float = 30.0) -> Waiting:
    return Waiting(demand(name, deadline_s=deadline_s), 0.0, charge_block_steps=charge)


def measured(rate_per_s: float = 10.0, usable: int = 100) -> Book:
    here = book(usable=usable)
    here.clock.counted(rate_per_s, 1.0, 1.0)
    assert here.clock.rate_per_s == rate_per_s
    return here


def test_nobody_serving_is_no_replica() -> None:
    gone = book()
    gone.phase = ReplicaPhase.UNREACHABLE
    for books in ([], [gone]):
        refusal = Shedding(queue(), 2).at_once(demand(), books)
        assert refusal is not None
        assert refusal.outcome is Outcome.NO_REPLICA
        assert refusal.retry_after_s is not None
        assert "'m'" in refusal.message


@pytest.mark.parametrize(("tokens", "refused"), [(999, False), (1000, True), (1001, True), (1700, True)])
def test_the_context_at_its_edge(tokens: int, refused: bool) -> None:
    """The engine needs room for one token, and counts no further than one past its context."""
    refusal = Shedding(queue(), 2).at_once(demand(prompt=tokens), [book(context=1000, usable=1000), book(context=500)])
    assert (refusal is not None) is refused
    if refusal is not None:
        gate = "context" if tokens == 1000 else "context.bound"
        assert (refusal.outcome, refusal.gate, refusal.unit) == (Outcome.NEVER_FITS, gate, "tokens")
        assert (refusal.measured, refusal.limit, refusal.retry_after_s) == (min(tokens, 1001), 1000, None)
        assert "maximum context length is 1000" in refusal.message


@pytest.mark.parametrize(("tokens", "refused"), [(1598, False), (1599, False), (1600, True)])
def test_the_pool_at_its_edge(tokens: int, refused: bool) -> None:
    refusal = Shedding(queue(), 2).at_once(demand(prompt=tokens), [book(usable=50), book(usable=100)])
    assert (refusal is not None) is refused
    if refusal is not None:
        assert (refusal.outcome, refusal.gate, refusal.unit) == (Outcome.NEVER_FITS, "kv", "blocks")
        assert (refusal.measured, refusal.limit, refusal.retry_after_s) == (101, 100, None)


def test_of_a_list_of_prompts_the_longest_must_fit() -> None:
    parts = [PromptPart(1500)] * 50
    assert Shedding(queue(), 2).at_once(demand(parts=parts), [book(usable=100)]) is None
    assert Shedding(queue(), 2).at_once(demand(parts=[*parts, PromptPart(1600)]), [book(usable=100)]) is not None


def test_the_wait_is_what_is_queued_over_what_the_replicas_turn_over() -> None:
    line = queue()
    line.push(waiting("a", 4000.0))
    line.push(waiting("b", 2000.0))
    shedding = Shedding(line, 2)
    assert shedding.wait_s([measured(10.0, 100), measured(20.0, 50)]) == pytest.approx(6000.0 / (1000.0 + 1000.0))
    draining = measured(10.0, 100)
    draining.phase = ReplicaPhase.DRAINING
    assert shedding.wait_s([measured(10.0, 100), draining]) == pytest.approx(6.0)


def test_too_late_needs_certainty_and_a_measured_clock() -> None:
    line = queue()
    line.push(waiting("a", 100_000.0))
    shedding = Shedding(line, 2)
    wait = shedding.wait_s([measured()])
    assert wait == pytest.approx(100.0)
    assert shedding.too_late(waiting("x", 1.0, deadline_s=wait + 1.0), [measured()], 0.0) is None
    refusal = shedding.too_late(waiting("x", 1.0, deadline_s=wait / 4.0), [measured()], 0.0)
    assert refusal is not None
    assert (refusal.outcome, refusal.measured, refusal.limit, refusal.unit) == (Outcome.QUEUE_TIMEOUT, 100.0, 25.0, "s")
    assert refusal.retry_after_s == pytest.approx(100.0)
    assert refusal.queue_position == 2
    assert shedding.too_late(waiting("x", 1.0, deadline_s=0.1), [book()], 0.0) is None


def test_a_full_queue_tells_which_bound_and_by_how_much() -> None:
    line = queue()
    line.push(waiting("a", 50_000.0))
    refusal = Shedding(line, 2).queue_full(("queue.requests_max", 11, 10), [measured()])
    assert (refusal.outcome, refusal.gate, refusal.policy_key) == (Outcome.QUEUE_FULL, "queue.requests_max", "queue.requests_max")
    assert (refusal.measured, refusal.limit, refusal.queue_position) == (11, 10, 2)
    assert refusal.retry_after_s == pytest.approx(50.0)


def test_a_retry_is_never_advised_at_once() -> None:
    shedding = Shedding(queue(), 2)
    assert shedding.queue_full(("queue.requests_max", 1, 0), [measured()]).retry_after_s == RETRY_S_MIN
    assert shedding.displaced([measured()], demand(priority=3)).retry_after_s == RETRY_S_MIN


def test_a_time_out_tells_how_long_it_waited_and_where_it_stood() -> None:
    line = queue()
    entry = Waiting(demand("b", arrived_s=1.0, deadline_s=31.0), 2.0)
    line.push(waiting("a", 1.0, deadline_s=5.0))
    line.push(entry)
    refusal = Shedding(line, 2).timed_out(entry, [measured()], 31.5)
    assert (refusal.outcome, refusal.measured, refusal.limit, refusal.queue_position) == (Outcome.QUEUE_TIMEOUT, 29.5, 30.0, 2)


@pytest.mark.parametrize(("reroutes_max", "tried", "refused"), [(0, 1, True), (2, 2, False), (2, 3, True)])
def test_reroutes_at_their_edge(reroutes_max: int, tried: int, refused: bool) -> None:
    refusal = Shedding(queue(), reroutes_max).rerouted_too_often(tried)
    assert (refusal is not None) is refused
    if refusal is not None:
        assert (refusal.outcome, refusal.measured) == (Outcome.UPSTREAM_FAILED, tried)
