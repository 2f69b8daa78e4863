"""Refusals with their numbers, and when a retry is worth its while."""

from dataclasses import replace

import pytest

from proxy.core.book import Book
from proxy.core.demand import PromptPart
from proxy.core.outcome import Outcome
from proxy.core.replica import ReplicaPhase
from proxy.core.shedding import Shedding
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


def test_a_stalled_replica_is_waited_for() -> None:
    """It counts like a serving one in what can never be served, too."""
    gone, stalled = book(usable=100), book(usable=50)
    gone.phase, stalled.phase = ReplicaPhase.UNREACHABLE, ReplicaPhase.STALLED
    assert Shedding(queue(), 2).at_once(demand(prompt=799), [gone, stalled]) is None
    refusal = Shedding(queue(), 2).at_once(demand(prompt=800), [gone, stalled])
    assert refusal is not None
    assert (refusal.outcome, refusal.measured, refusal.limit) == (Outcome.NEVER_FITS, 51, 50)


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


def test_a_promise_is_kept_for_who_will_start_in_time() -> None:
    """10,000 block-steps ahead at 850 a second: 11.8 s and the margin."""
    line = queue()
    line.push(waiting("a", 10_000.0, deadline_s=9.0))
    shedding, pool = Shedding(line, 2), [measured(10.0, 100)]
    wait_s = shedding.forecast.wait_s(waiting("x", 1.0), pool, 0.0)
    assert wait_s == pytest.approx(10_000.0 / 850.0)
    edge_s = wait_s + shedding.forecast.margin_s(wait_s)
    assert wait_s + 0.5 < edge_s < wait_s + 6.0
    assert shedding.promises(waiting("in", 1.0, deadline_s=edge_s + 1e-6), pool, 0.0)
    assert not shedding.promises(waiting("out", 1.0, deadline_s=edge_s - 1e-6), pool, 0.0)


def test_nobody_is_too_late_before_the_clock_was_measured() -> None:
    line = queue()
    line.push(waiting("a", 1e9, deadline_s=0.5))
    assert Shedding(line, 2).promises(waiting("x", 1.0, deadline_s=1.0), [book()], 0.0)


def test_who_gets_no_promise_stands_by_for_a_twentieth_of_its_time() -> None:
    line = queue()
    line.push(waiting("a", 100_000.0, deadline_s=9.0))
    shedding, pool = Shedding(line, 2), [measured(10.0, 100)]
    entry = waiting("x", 1.0, deadline_s=25.0)
    entry.promised = shedding.promises(entry, pool, 5.0)
    line.push(entry)
    assert [one.demand.request_id for one in line.standing_by()] == ["x"]
    assert shedding.too_late(entry, pool, 5.999) is None
    refusal = shedding.too_late(entry, pool, 6.0)
    assert refusal is not None
    assert (refusal.outcome, refusal.unit, refusal.queue_position) == (Outcome.QUEUE_TIMEOUT, "s", 2)
    assert (refusal.measured, refusal.limit) == (pytest.approx(100_000.0 / 850.0, abs=1e-3), 19.0)
    assert refusal.retry_after_s is not None
    assert refusal.retry_after_s > 60.0


def test_a_promise_is_never_too_late() -> None:
    line = queue()
    entry = waiting("x", 1.0, deadline_s=25.0)
    assert Shedding(line, 2).promises(entry, [measured()], 0.0)
    assert Shedding(line, 2).too_late(entry, [measured()], 24.9) is None


def test_a_full_queue_tells_which_bound_and_by_how_much() -> None:
    line = queue()
    line.push(waiting("a", 50_000.0))
    refusal = Shedding(line, 2).queue_full(("queue.requests_max", 11, 10), waiting("x", 1.0), [measured()], 0.0)
    assert (refusal.outcome, refusal.gate, refusal.policy_key) == (Outcome.QUEUE_FULL, "queue.requests_max", "queue.requests_max")
    assert (refusal.measured, refusal.limit, refusal.queue_position) == (11, 10, 2)
    assert refusal.retry_after_s == pytest.approx(50.0 / 0.85 - 15.0)


def test_who_is_displaced_is_told_by_which_priority_and_when_to_come() -> None:
    refusal = Shedding(queue(), 2).displaced(waiting("x", 1.0), demand(priority=3), [measured()], 0.0)
    assert (refusal.outcome, refusal.policy_key, refusal.retry_after_s) == (Outcome.DISPLACED, "classes[].priority", 1.0)
    assert "priority 3" in refusal.message


def test_who_was_told_to_come_needs_no_further_margin() -> None:
    line = queue()
    line.push(waiting("a", 8500.0, deadline_s=9.0))
    shedding = Shedding(line, 2)
    newcomer, returning = waiting("x", 1.0, deadline_s=10.5), waiting("y", 1.0, deadline_s=10.5)
    returning.returning = True
    assert not shedding.promises(newcomer, [measured()], 0.0)
    assert shedding.promises(returning, [measured()], 0.0)


def test_the_first_token_has_to_come_in_time_not_the_start() -> None:
    """The latest start leaves room for the prefill; a target that is missed anyway leaves the deadline alone."""
    here = measured()
    late = Shedding.start_by_s(demand(arrived_s=1.0, ttft_s=4.0), [here], 1.0)
    assert late == pytest.approx(5.0 - here.saturation.ttft_s_forecast(demand(arrived_s=1.0), 1.0) - 3.0 / 10.0)
    assert Shedding.start_by_s(demand(arrived_s=1.0, ttft_s=0.01), [here], 1.0) == float("inf")
    assert Shedding.start_by_s(demand(), [here], 1.0) == float("inf")
    here.phase = ReplicaPhase.STALLED
    assert Shedding.start_by_s(demand(arrived_s=1.0, ttft_s=4.0), [here], 1.0) == late


def test_one_that_is_spared_stands_by_until_its_deadline() -> None:
    line = queue()
    line.push(waiting("a", 100_000.0, deadline_s=9.0))
    shedding, entry = Shedding(line, 2), waiting("x", 1.0, deadline_s=25.0)
    shedding.spared = frozenset({"x"})
    entry.promised = shedding.promises(entry, [measured()], 5.0)
    assert not entry.promised
    assert shedding.too_late(entry, [measured()], 24.9) is None


def test_a_time_out_tells_how_long_it_waited_and_where_it_stood() -> None:
    line = queue()
    entry = Waiting(demand("b", arrived_s=1.0, deadline_s=31.0), 2.0)
    line.push(waiting("a", 1.0, deadline_s=5.0))
    line.push(entry)
    refusal = Shedding(line, 2).timed_out(entry, [measured()], 31.5)
    assert (refusal.outcome, refusal.measured, refusal.limit, refusal.queue_position) == (Outcome.QUEUE_TIMEOUT, 29.5, 30.0, 2)


def test_who_waited_in_vain_while_nobody_served_is_told_so() -> None:
    line = queue()
    entry = Waiting(demand("b", deadline_s=30.0), 0.0)
    line.push(entry)
    shedding, here, gone = Shedding(line, 2), measured(), measured()
    gone.phase = ReplicaPhase.UNREACHABLE
    assert shedding.timed_out(entry, [here, gone], 30.0).outcome is Outcome.QUEUE_TIMEOUT
    for phase in (ReplicaPhase.STALLED, ReplicaPhase.EJECTED, ReplicaPhase.UNREACHABLE):
        here.phase = phase
        refusal = shedding.timed_out(entry, [here, gone], 30.0)
        assert (refusal.outcome, refusal.gate, refusal.measured) == (Outcome.NO_REPLICA, "replicas", 30.0)
        assert refusal.retry_after_s is not None
        assert phase in refusal.message
    assert "2 unreachable" in refusal.message
    assert "none is left" in shedding.timed_out(entry, [], 30.0).message


def test_one_whose_home_is_gone_is_told_that_nobody_serves_it() -> None:
    entry, here = Waiting(replace(demand("b"), kept_from=frozenset({"other"})), 0.0), measured()
    assert Shedding(queue(), 2).nobody_serves(entry, [here], 1.0) is None
    away = Waiting(replace(demand("b"), kept_from=frozenset({here.spec.name})), 0.0)
    assert Shedding(queue(), 2).nobody_serves(away, [here], 1.0) is not None


def test_who_stood_by_for_replicas_that_went_is_told_so() -> None:
    line = queue()
    line.push(waiting("a", 100_000.0, deadline_s=9.0))
    shedding, entry, here = Shedding(line, 2), waiting("x", 1.0, deadline_s=25.0), measured()
    entry.promised = shedding.promises(entry, [here], 5.0)
    here.phase = ReplicaPhase.STALLED
    refusal = shedding.too_late(entry, [here], 24.9)
    assert refusal is not None
    assert refusal.outcome is Outcome.NO_REPLICA


@pytest.mark.parametrize(("reroutes_max", "tried", "refused"), [(0, 1, True), (2, 2, False), (2, 3, True)])
def test_reroutes_at_their_edge(reroutes_max: int, tried: int, refused: bool) -> None:
    refusal = Shedding(queue(), reroutes_max).not_again(tried, elsewhere=True)
    assert (refusal is not None) is refused
    if refusal is not None:
        assert (refusal.outcome, refusal.measured) == (Outcome.UPSTREAM_FAILED, tried)


def test_a_reroute_needs_somewhere_to_go() -> None:
    assert Shedding(queue(), 2).not_again(1, elsewhere=False) is not None
    assert Shedding(queue(), 2).not_again(1, elsewhere=True) is None


def test_what_a_ttft_target_bounds_is_refused_by_that_key() -> None:
    """Latest start at 1.5 s, long before the deadline: the answer names the target."""
    line = queue()
    entry = Waiting(demand("q", deadline_s=30.0, ttft_s=2.0), 0.0, charge_block_steps=1.0, start_by_s=1.5)
    line.push(entry)
    assert [one.demand.request_id for one in line.expired(1.5)] == ["q"]
    refusal = Shedding(line, 2).timed_out(entry, [measured()], 1.5)
    assert (refusal.outcome, refusal.gate, refusal.policy_key) == (Outcome.QUEUE_TIMEOUT, "classes[].ttft", "classes[].ttft")
    assert (refusal.measured, refusal.limit) == (1.5, 1.5)
    assert "first token" in refusal.message


def test_a_short_target_is_promised_on_the_forecast_alone() -> None:
    """Nobody is ahead: the margin that deadlines of many seconds need would refuse every target of half a second."""
    shedding = Shedding(queue(), 2)
    assert shedding.forecast.margin_s(0.0) > 0.5
    soon = Waiting(demand("a", deadline_s=30.0, ttft_s=0.5), 0.0, charge_block_steps=1.0, start_by_s=0.4)
    assert shedding.promises(soon, [measured()], 0.0)
    assert not shedding.promises(Waiting(demand("b", deadline_s=0.4), 0.0, charge_block_steps=1.0), [measured()], 0.0)
