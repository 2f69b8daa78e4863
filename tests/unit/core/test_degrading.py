"""Requests let in with less than they asked for: when, how much less, and who never is."""

from dataclasses import replace
from typing import Any

import pytest

from proxy.core.degrading import caps
from proxy.core.demand import Demand
from proxy.core.events import Arrive, Cancelled, Effect, Finished, Granted, Observed, ReplicaFound, Reserve, Shed, Tick
from proxy.core.gate import Gate
from proxy.core.outcome import Outcome
from proxy.core.wait_queue import Waiting
from tests.support.builders import book, demand, engine_sample, knows_lengths, policy, scrape, spec


def big(name: str, *, cap: int | None = 1600, floor: int | None = 100, first: bool = True, **more: Any) -> Demand:
    """Of 101 blocks by its cap, 51 by half of it, 8 by its floor."""
    return replace(demand(name, prompt=16, cap=cap, **more), degrade_tokens_min=floor, degrade_first=first)


def gate_of(usable: int = 90) -> Gate:
    gate = Gate(policy(), 0.0)
    gate.handle(ReplicaFound(spec("r0", usable=usable, context=2048)), 0.0)
    gate.handle(Observed(scrape("r0", 0.0, engine_sample())), 0.0)
    knows_lengths(gate.fleet.model, big("x"), demand("y", prompt=400, cap=400))
    return gate


def cap_of(effects: list[Effect]) -> int | None:
    (reserve,) = effects
    assert isinstance(reserve, Reserve)
    assert reserve.lease.demand.output_tokens_max == reserve.lease.output_tokens_max
    return reserve.lease.demand.output_tokens_max


def occupied(cap: int = 400) -> Gate:
    """50 of 90 blocks are taken."""
    gate = gate_of()
    gate.handle(Arrive(demand("runs", prompt=400, cap=cap)), 0.0)
    gate.handle(Granted("runs"), 0.0)
    return gate


@pytest.mark.parametrize(
    ("cap", "floor", "tried"),
    [
        (1600, 100, [800, 400, 200, 100]),
        (None, 1000, [1016, 1000]),
        (101, 100, [100]),
        (100, 100, []),
        (50, 100, []),
        (1600, None, []),
    ],
)
def test_halves_down_to_the_floor(cap: int | None, floor: int | None, tried: list[int]) -> None:
    books = [book(context=2048), book(context=4096)]
    assert list(caps(Waiting(big("q", cap=cap, floor=floor), 0.0), books)) == tried


def test_what_fits_is_left_as_it_is() -> None:
    assert cap_of(gate_of().handle(Arrive(big("q", cap=400)), 0.5)) == 400


def test_the_largest_cap_that_fits_is_taken() -> None:
    gate = occupied()
    assert cap_of(gate.handle(Arrive(big("q")), 0.5)) == 800
    gate.handle(Granted("q"), 0.5)
    assert gate.counters.degraded == 1


def test_with_no_room_for_the_least_it_waits_with_that() -> None:
    gate = occupied(cap=1300)  # more than there are: it has the pool for itself
    assert gate.handle(Arrive(big("q")), 0.5) == []
    (entry,) = gate.queue.order()
    assert entry.demand.output_tokens_max == 100
    ended = gate.handle(Finished("runs", Outcome.COMPLETED, 5), 1.0)
    assert cap_of([one for one in ended if isinstance(one, Reserve)]) == 100


def test_after_waiting_in_vain_it_is_let_in_with_the_least() -> None:
    gate = occupied()
    assert gate.handle(Arrive(big("q", first=False, deadline_s=2.0)), 0.5) == []
    assert cap_of(gate.handle(Tick(), 2.0)) == 100
    assert not len(gate.queue)


def test_one_for_whose_least_there_is_no_room_is_shed() -> None:
    gate = occupied(cap=1300)
    gate.handle(Arrive(big("q", first=False, deadline_s=2.0)), 0.5)
    (shed,) = gate.handle(Tick(), 2.0)
    assert isinstance(shed, Shed)
    assert shed.refusal.outcome is Outcome.QUEUE_TIMEOUT


@pytest.mark.parametrize("first", [True, False])
def test_who_may_not_be_degraded_waits_and_is_shed_as_it_is(*, first: bool) -> None:
    gate = occupied()
    assert gate.handle(Arrive(big("q", floor=None, first=first, deadline_s=2.0)), 0.5) == []
    (entry,) = gate.queue.order()
    assert entry.demand.output_tokens_max == 1600
    (shed,) = gate.handle(Tick(), 2.0)
    assert isinstance(shed, Shed)


def test_one_that_its_client_leaves_leaves_nothing_behind() -> None:
    gate = occupied(cap=1300)
    gate.handle(Arrive(big("q")), 0.5)
    gate.handle(Cancelled("q"), 0.6)
    assert (len(gate.queue), gate.queue.tokens, gate.open_requests) == (0, 0, 1)
