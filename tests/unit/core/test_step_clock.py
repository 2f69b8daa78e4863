"""The replica's own time: the fastest stream moves it, the rate where no stream shows it, the engine's counter where it tells."""

import pytest

from proxy.core.ledger import Lease
from proxy.core.step_clock import ADVANCE_S_MIN, StepClock
from tests.support.builders import book, demand


class Streams:
    """Leases of one replica, as its clock sees them."""

    def __init__(self) -> None:
        self.ledger = book().ledger

    def lease(self, name: str, *, streaming: bool = True, copies: int = 1) -> Lease:
        lease = Lease(name, demand(name, copies=copies), "r0", 100, 0.0, 0.0, streaming, placed=True)
        self.ledger.add(lease)
        return lease

    def advance(self, clock: StepClock, now_s: float) -> None:
        """Look and move on, as a refresh does."""
        if clock.due(now_s):
            clock.advance(now_s, self.ledger.look())


def test_the_fastest_stream_moves_the_clock() -> None:
    clock, streams = StepClock(0.0), Streams()
    slow, fast = streams.lease("a"), streams.lease("b")
    streams.advance(clock, 1.0)
    before = clock.steps
    slow.output_tokens, fast.output_tokens = 3, 50
    streams.advance(clock, 2.0)
    assert clock.steps - before == 50.0
    assert clock.measured
    assert clock.rate_per_s == pytest.approx(50.0)


def test_tokens_of_all_copies_are_one_step_each() -> None:
    clock, streams = StepClock(0.0), Streams()
    many = streams.lease("a", copies=4)
    streams.advance(clock, 1.0)
    before = clock.steps
    many.output_tokens = 40
    streams.advance(clock, 2.0)
    assert clock.steps - before == 10.0


def test_a_stalled_stream_stops_the_clock_and_teaches_no_rate() -> None:
    clock, streams = StepClock(0.0), Streams()
    streams.lease("a")
    streams.advance(clock, 1.0)
    steps, rate = clock.steps, clock.rate_per_s
    streams.advance(clock, 2.0)
    assert (clock.steps, clock.rate_per_s, clock.measured) == (steps, rate, False)


def test_unseen_answers_move_by_the_rate_and_idleness_not_at_all() -> None:
    clock, streams = StepClock(0.0), Streams()
    streams.advance(clock, 1.0)
    assert clock.steps == 0.0
    streams.lease("a", streaming=False)
    streams.advance(clock, 3.0)
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
    clock, streams = StepClock(0.0), Streams()
    one = streams.lease("a")
    streams.advance(clock, 1.0)
    one.output_tokens = 30
    streams.advance(clock, 2.0)
    clock.counted(1e6, 1.0, 1.0)
    assert clock.rate_per_s == pytest.approx(30.0)


def test_looks_too_close_together_lose_no_tokens() -> None:
    clock, streams = StepClock(0.0), Streams()
    one = streams.lease("a")
    streams.advance(clock, 1.0)
    before = clock.steps
    for index in range(1, 101):
        one.output_tokens = index
        streams.advance(clock, 1.0 + index * ADVANCE_S_MIN / 4.0)
    streams.advance(clock, 9.0)
    assert clock.steps - before == 100.0


def test_time_that_stands_or_goes_back_moves_nothing() -> None:
    clock, streams = StepClock(10.0), Streams()
    streams.lease("a", streaming=False)
    streams.advance(clock, 10.0)
    streams.advance(clock, 3.0)
    assert clock.steps == 0.0


def test_a_stream_that_ends_or_starts_makes_no_jump() -> None:
    clock, streams = StepClock(0.0), Streams()
    old = streams.lease("a")
    old.output_tokens = 500
    streams.advance(clock, 1.0)
    before = clock.steps
    streams.ledger.remove("a")
    young = streams.lease("b")
    young.output_tokens = 90
    streams.advance(clock, 2.0)  # first seen: how far it came since is unknown, so the rate says
    assert clock.steps - before == pytest.approx(clock.rate_per_s)
