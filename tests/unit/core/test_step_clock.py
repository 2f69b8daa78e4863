"""The replica's own time: the fastest stream moves it, the rate where no stream shows it, the engine's counter where it tells."""

import pytest

from proxy.core.ledger import Lease
from proxy.core.step_clock import ADVANCE_S_MIN, StepClock
from tests.support.builders import demand


def lease(name: str, *, streaming: bool = True, placed: bool = True, copies: int = 1) -> Lease:
    return Lease(name, demand(name, copies=copies), "r0", 100, 0.0, 0.0, streaming, 0, placed)


def test_the_fastest_stream_moves_the_clock() -> None:
    clock, slow, fast = StepClock(0.0), lease("a"), lease("b")
    clock.advance(1.0, [fast, slow])
    before = clock.steps
    slow.output_tokens, fast.output_tokens = 3, 50
    clock.advance(2.0, [fast, slow])
    assert clock.steps - before == 50.0
    assert clock.measured
    assert clock.rate_per_s == pytest.approx(50.0)


def test_tokens_of_all_copies_are_one_step_each() -> None:
    clock, many = StepClock(0.0), lease("a", copies=4)
    clock.advance(1.0, [many])
    before = clock.steps
    many.output_tokens = 40
    clock.advance(2.0, [many])
    assert clock.steps - before == 10.0


def test_a_stalled_stream_stops_the_clock_and_teaches_no_rate() -> None:
    clock, one = StepClock(0.0), lease("a")
    clock.advance(1.0, [one])
    steps, rate = clock.steps, clock.rate_per_s
    clock.advance(2.0, [one])
    assert (clock.steps, clock.rate_per_s, clock.measured) == (steps, rate, False)


def test_unseen_answers_move_by_the_rate_and_idleness_not_at_all() -> None:
    clock, unseen = StepClock(0.0), lease("a", streaming=False)
    clock.advance(1.0, [])
    assert clock.steps == 0.0
    clock.advance(3.0, [unseen])
    assert clock.steps == pytest.approx(2.0 * clock.rate_per_s)


def test_the_engines_counter_corrects_the_rate_where_no_stream_shows_it() -> None:
    clock = StepClock(0.0)
    clock.counted(900.0, 10.0, 2.0)
    assert (clock.rate_per_s, clock.measured) == (45.0, True)
    for _ in range(100):
        clock.counted(200.0, 10.0, 1.0)
    assert clock.rate_per_s == pytest.approx(20.0, rel=1e-3)


@pytest.mark.parametrize(
    ("tokens", "sequences", "elapsed"), [(0.0, 5.0, 1.0), (-5.0, 5.0, 1.0), (10.0, 0.0, 1.0), (10.0, 5.0, 0.0)]
)
def test_a_counter_that_tells_nothing_teaches_nothing(tokens: float, sequences: float, elapsed: float) -> None:
    clock = StepClock(0.0)
    clock.counted(tokens, sequences, elapsed)
    assert not clock.measured


def test_streams_rule_over_the_counter() -> None:
    clock, one = StepClock(0.0), lease("a")
    clock.advance(1.0, [one])
    one.output_tokens = 30
    clock.advance(2.0, [one])
    clock.counted(1e6, 1.0, 1.0)
    assert clock.rate_per_s == pytest.approx(30.0)


def test_looks_too_close_together_lose_no_tokens() -> None:
    clock, one = StepClock(0.0), lease("a")
    clock.advance(1.0, [one])
    before = clock.steps
    for index in range(1, 101):
        one.output_tokens = index
        clock.advance(1.0 + index * ADVANCE_S_MIN / 4.0, [one])
    clock.advance(9.0, [one])
    assert clock.steps - before == 100.0


def test_time_that_stands_or_goes_back_moves_nothing() -> None:
    clock, unseen = StepClock(10.0), lease("a", streaming=False)
    clock.advance(10.0, [unseen])
    clock.advance(3.0, [unseen])
    assert clock.steps == 0.0


def test_a_stream_that_ends_or_starts_makes_no_jump() -> None:
    clock, old = StepClock(0.0), lease("a")
    old.output_tokens = 500
    clock.advance(1.0, [old])
    before = clock.steps
    young = lease("b")
    young.output_tokens = 90
    clock.advance(2.0, [young])  # first seen: how far it came since is unknown, so the rate says
    assert clock.steps - before == pytest.approx(clock.rate_per_s)
