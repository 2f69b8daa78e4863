"""What proxies tell each other besides rows: charges of tenants, and how long outputs were."""

from time import perf_counter

import pytest

from proxy.core.events import (
    Arrive,
    Finished,
    Granted,
)
from proxy.core.exchange import Completion
from proxy.core.length_names import leaf_name
from proxy.core.outcome import Outcome
from tests.support.builders import demand
from tests.support.several import account, filled, gate_of, quarter


def test_charges_are_told_once_and_move_the_others_queues_alike() -> None:
    here, there = gate_of(), gate_of()
    here.handle(Arrive(quarter("a", tenant="a")), 0.0)
    here.handle(Arrive(quarter("b", tenant="b", priority=1)), 0.2)
    charges = here.share().exchange.take_charges()
    assert set(charges) == {(0, "a"), (1, "b")}
    assert not here.share().exchange.take_charges()
    there.share().exchange.charged(charges, here.share().exchange.clocks())
    assert account(there)[0] == pytest.approx(account(here)[0])
    assert not there.share().exchange.take_charges(), "what was heard is not told again"
    here.handle(Granted("a"), 0.2)
    here.handle(Finished("a", Outcome.COMPLETED, 5), 0.5)  # it took less than it was charged
    there.share().exchange.charged(here.share().exchange.take_charges(), {})
    assert account(there)[0] == pytest.approx(account(here)[0])


def test_a_tenant_spread_over_two_is_served_as_one() -> None:
    """It has had its share elsewhere, so the other tenant goes first here."""
    gate = filled(gate_of())
    gate.share().exchange.charged({(0, "spread"): 5000.0, (0, "other"): 0.0}, {})
    gate.handle(Arrive(quarter("s", tenant="spread", deadline_s=50.0)), 1.0)
    gate.handle(Arrive(quarter("o", tenant="other", deadline_s=60.0)), 1.0)
    assert next(gate.queue.order()).demand.request_id == "o"


def test_a_queue_that_begins_gives_nobody_credit() -> None:
    gate = filled(gate_of())
    gate.share().exchange.charged({}, {0: 7000.0})
    assert gate.queue.virtual(quarter("x", tenant="new")) == 7000.0


def test_completions_teach_other_proxies() -> None:
    here, there = gate_of(), gate_of()
    here.handle(Arrive(quarter("a")), 0.0)
    here.handle(Granted("a"), 0.0)
    here.handle(Finished("a", Outcome.COMPLETED, 7, natural=True), 0.5)
    (told,) = here.share().exchange.take_completions()
    assert told == Completion("r0", leaf_name(quarter("a")), 7.0, True, 385, 7.0, True, False)
    assert not here.share().exchange.take_completions()
    before = there.fleet.books["r0"].feedback._tokens
    there.share().exchange.completed([told])
    assert there.fleet.model._ends == pytest.approx(here.fleet.model._ends)
    assert there.fleet.books["r0"].feedback._tokens == here.fleet.books["r0"].feedback._tokens != before


def test_a_fleet_that_restarts_remembers_at_once() -> None:
    one = demand(prompt=385, cap=500)
    past = [Completion("r0", leaf_name(one), float(20 + index % 7), True, 385, 20.0, True, True) for index in range(2000)]
    gate = gate_of()
    delta = gate.fleet.books["r0"].feedback.delta
    begun_s = perf_counter()
    gate.share().exchange.completed(past, history=True)
    assert perf_counter() - begun_s < 2.0
    gate.fleet.rebuild_when_due(10.0)
    seen = gate_of().fleet.model
    for past_one in past:
        seen.learn(one, past_one.output_tokens, natural=True)
    seen.rebuild(())
    assert gate.fleet.model.output_tokens_expected(one, 500) == pytest.approx(seen.output_tokens_expected(one, 500))
    assert gate.fleet.books["r0"].feedback.delta == delta
