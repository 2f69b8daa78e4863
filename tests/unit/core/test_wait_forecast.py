"""Forecast waits, and what a gate learns from its own errors."""

import random

import pytest

from proxy.core.book import Book
from proxy.core.replica import ReplicaPhase
from proxy.core.wait_forecast import FILL_RATIO, PROMISE_QUANTILE, RETURN_S_MIN, WaitForecast
from proxy.core.wait_queue import Waiting, WaitQueue
from tests.support.builders import book, demand


def queue() -> WaitQueue:
    return WaitQueue(requests_max=1000, tokens_max=10**6, bytes_max=10**6)


def waiting(name: str, charge: float = 1000.0, *, tenant: str = "a", weight: float = 1.0, priority: int = 0) -> Waiting:
    one = demand(name, tenant=tenant, weight=weight, priority=priority, deadline_s=30.0)
    return Waiting(one, 0.0, charge_block_steps=charge)


def replica(usable: int = 100, rate_per_s: float = 10.0) -> Book:
    here = book(usable=usable)
    here.clock.counted(rate_per_s, 1.0, 1.0)
    return here


def ahead(line: WaitQueue, entry: Waiting) -> float:
    return line.ahead(entry.demand, entry.rank_s).total


def test_the_wait_is_what_is_ahead_over_what_the_replicas_turn_over() -> None:
    line = queue()
    line.push(waiting("a", 4000.0))
    line.push(waiting("b", 2000.0))
    forecast = WaitForecast(line)
    assert forecast.wait_s(waiting("x"), [replica(), replica(usable=50, rate_per_s=20.0)], 0.0) == pytest.approx(3.0 / FILL_RATIO)
    draining = replica()
    draining.phase = ReplicaPhase.DRAINING
    assert forecast.wait_s(waiting("x"), [replica(), draining], 0.0) == pytest.approx(6.0 / FILL_RATIO)


def test_who_waits_for_a_stalled_replica_is_foretold_the_rate_it_had() -> None:
    line = queue()
    line.push(waiting("a", 6000.0))
    forecast = WaitForecast(line)
    serving, stalled, gone = replica(usable=50), replica(), replica()
    stalled.phase, gone.phase = ReplicaPhase.STALLED, ReplicaPhase.UNREACHABLE
    assert forecast.wait_s(waiting("x"), [stalled, gone], 0.0) == pytest.approx(6.0 / FILL_RATIO)
    assert forecast.wait_s(waiting("x"), [serving, stalled, gone], 0.0) == pytest.approx(12.0 / FILL_RATIO)


def test_higher_bands_are_ahead_and_lower_ones_are_not() -> None:
    line = queue()
    line.push(waiting("high", 500.0, priority=2))
    line.push(waiting("same", 700.0))
    line.push(waiting("low", 9000.0, priority=-1))
    assert ahead(line, waiting("x")) == 1200.0
    assert ahead(line, waiting("x", priority=5)) == 0.0


def test_what_rounding_left_of_those_who_went_takes_nothing_off() -> None:
    """A band of nobody may hold a little less than nothing, and a line of nobody a little more: together they were nothing to divide by."""
    line = queue()
    for priority, name in ((2, "high"), (0, "same")):
        line.push(waiting(name, priority=priority))
    for name in ("high", "same"):
        line.remove(name)
    line.bands[2].charge, line.bands[0].tenants["a"].charge = -1e-12, 1e-12
    assert ahead(line, waiting("x")) == 1e-12
    assert WaitForecast(line).wait_s(waiting("x"), [replica()], 0.0) == pytest.approx(0.0, abs=1e-9)


def test_a_tenant_with_little_waits_little_however_much_others_have() -> None:
    """Turns are taken by token-time: of the other's 20,000 only as much goes first as the tenant itself has, per weight."""
    line = queue()
    for index in range(20):
        line.push(waiting(f"loud{index}", tenant="loud"))
    line.push(waiting("q", 1500.0, tenant="quiet"))
    assert ahead(line, waiting("x", tenant="new")) == 0.0
    assert ahead(line, waiting("x", tenant="quiet")) == 3000.0
    assert ahead(line, waiting("x", tenant="loud")) == 21_500.0


def test_weights_count_in_what_is_ahead() -> None:
    line = queue()
    for index in range(20):
        line.push(waiting(f"heavy{index}", tenant="heavy", weight=3.0))
    line.push(waiting("light", 1000.0, tenant="light", weight=1.0))
    assert ahead(line, waiting("x", tenant="light", weight=1.0)) == 4000.0


@pytest.mark.parametrize("seed", range(3))
def test_ahead_is_what_is_served_before_it(seed: int) -> None:
    """The formula against the order itself, to within one request of each tenant."""
    rng = random.Random(seed)
    line = queue()
    for index in range(120):
        line.push(waiting(f"q{index}", rng.uniform(50.0, 150.0), tenant=rng.choice("aaaabbc"), priority=rng.randint(0, 1)))
    for tenant in "abc":
        late = waiting(f"x{tenant}", tenant=tenant)
        foretold = ahead(line, late)
        line.push(late)
        before = 0.0
        for entry in line.order():
            if entry is late:
                break
            before += entry.charge_block_steps
        line.remove(f"x{tenant}")
        assert before == pytest.approx(foretold, abs=300.0), f"seed={seed} tenant={tenant}"


def test_the_rate_is_learned_while_somebody_waits() -> None:
    """Replicas that turn over half of what they should: the forecast comes to say so."""
    line, here = queue(), [replica()]
    forecast = WaitForecast(line)
    for index in range(60):
        line.push(waiting(f"q{index}", 500.0))
    before_s = forecast.wait_s(waiting("x"), here, 0.0)
    for index in range(40):
        line.now_s = 1.0 + index
        line.remove(f"q{index}", admitted=True)
    after_s = forecast.wait_s(waiting("x"), here, 0.0)
    assert before_s == pytest.approx(60 * 500.0 / 850.0)
    assert after_s == pytest.approx(20.0, rel=0.15)


def test_the_margin_is_a_quantile_of_past_errors() -> None:
    """Waits that are normal around the forecast with a spread of 0.1 * sqrt(W + 1): nine in ten promises and more hold."""
    rng = random.Random(1)
    forecast = WaitForecast(queue())
    before_s = forecast.margin_s(9.0)
    held = 0
    for index in range(600):
        entry = waiting(f"q{index}")
        entry.forecast_s, entry.forecast_at_s = 9.0, 0.0
        waited_s = 9.0 + rng.gauss(0.0, 0.1) * 10.0**0.5
        held += index >= 200 and waited_s <= 9.0 + forecast.margin_s(9.0)
        forecast.learn(entry, waited_s)
    assert forecast.margin_s(9.0) < before_s / 2.0
    assert held / 400 == pytest.approx(PROMISE_QUANTILE, abs=0.03)


def test_short_waits_and_those_without_a_promise_teach_nothing() -> None:
    forecast = WaitForecast(queue())
    before_s = forecast.margin_s(9.0)
    for index in range(200):
        short, unpromised, unknown = waiting(f"s{index}"), waiting(f"u{index}"), waiting(f"n{index}")
        short.forecast_s, unpromised.forecast_s, unpromised.promised = 0.1, 9.0, False
        for entry in (short, unpromised, unknown):
            forecast.learn(entry, 1000.0)
    assert forecast.margin_s(9.0) == before_s


def test_waits_that_are_always_shorter_need_no_margin() -> None:
    forecast = WaitForecast(queue())
    for index in range(200):
        entry = waiting(f"q{index}")
        entry.forecast_s = 9.0
        forecast.learn(entry, 5.0)
    assert forecast.margin_s(9.0) == 0.0


def test_who_is_due_before_one_would_start_is_let_in_first() -> None:
    """850 a second: 8.5 s ahead, and 1,700 promised to somebody who comes in 5 s, or in 20 s when it is too late to matter."""
    for due_s, more_s in ((5.0, 1.0), (20.0, 0.0)):
        line = queue()
        line.push(waiting("a", 7225.0))
        forecast = WaitForecast(line)
        forecast.promises.told(demand("b", tenant="a", fingerprint=1), 1700.0, due_s, 0.0)
        assert forecast.wait_s(waiting("x"), [replica()], 0.0) == pytest.approx(
            8.5 + more_s
        )  # every second one returns, at first
        returning = waiting("r")
        returning.returning = True
        assert forecast.wait_s(returning, [replica()], 0.0) == pytest.approx(8.5)


def test_each_is_told_to_come_after_those_told_before() -> None:
    """A line of 20 s, deadlines of 30 s: each comes half its time before it would start; every second seat is thought to be claimed."""
    line = queue()
    line.push(waiting("a", 17_000.0))
    forecast = WaitForecast(line)
    told = []
    for index in range(3):
        one = Waiting(demand(f"q{index}", tenant="a", deadline_s=30.0, fingerprint=index + 1), 0.0, charge_block_steps=3400.0)
        told.append(forecast.return_s(one, [replica()], 0.0))
    assert told == [pytest.approx(5.0), pytest.approx(7.0), pytest.approx(9.0)]
    assert len(forecast.promises) == 3


def test_a_retry_is_never_advised_at_once() -> None:
    forecast = WaitForecast(queue())
    assert forecast.return_s(waiting("x"), [replica()], 0.0) == RETURN_S_MIN
