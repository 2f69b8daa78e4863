"""A gate among several: what it asks of the store, what a refusal leaves behind, whom it puts forward, and what is exchanged."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from proxy.core.events import (
    Arrive,
    Finished,
    Forward,
    Granted,
    Observed,
    Offered,
    RecordTold,
    Refused,
    Release,
    ReplicaFound,
    Tick,
)
from proxy.core.gate import Gate
from proxy.core.outcome import Outcome
from proxy.core.saturation import Binding
from proxy.core.shared import Answer, Level, Load, Rank, curves_of, load_of, row_of, tenant_number
from proxy.core.wait_queue import Waiting
from tests.support.builders import engine_sample, policy, scrape, spec
from tests.support.several import STORE_AHEAD_S, account, filled, gate_of, names, quarter, record, reserves, tell


def test_alone_nothing_is_made_for_a_store() -> None:
    alone = gate_of(shared=False)
    (effect,) = reserves(alone.handle(Arrive(quarter("a")), 0.0))
    assert (effect.row, effect.rank, alone.several) == (None, None, None)
    assert alone.queue.charged is None


def test_a_reservation_carries_what_it_adds_and_its_rank() -> None:
    gate = gate_of()
    gate.handle(record(gate), 0.0)
    (effect,) = reserves(gate.handle(Arrive(quarter("a", priority=3, deadline_s=40.0)), 0.0))
    assert isinstance(effect.row, Level), "undrawn, in a pool so roomy"
    level = effect.row.row()
    assert load_of(level) == Load(1.0, 1.0, 0.0, 25.0, 0.0, 385.0)
    assert curves_of(level)[2].max() == 25.0
    assert effect.rank == Rank(-3.0, 0.0, 40.0 + STORE_AHEAD_S, tenant_number(quarter("a").tenant))
    row = gate.share().book("r0")
    assert row is not None
    written = row.row(0.0)
    assert written is not None
    assert (curves_of(level) >= curves_of(written)).all()
    drawn = [reserves(gate.handle(Arrive(quarter(f"q{index}")), 0.0))[0].row for index in range(2)][-1]
    assert isinstance(drawn, np.ndarray)
    assert np.allclose(curves_of(drawn), curves_of(written)), "where it matters a request adds its very curves"


def test_ranks_compare_tenants_by_what_all_have_heard_that_they_had() -> None:
    gate, other = gate_of(), gate_of()
    ranks = [reserves(gate.handle(Arrive(quarter("a", tenant="a")), 0.0))[0].rank]
    for turn in range(2):
        ranks.append(reserves(gate.handle(Arrive(quarter(f"a{turn}", tenant="a")), 0.2 + turn))[0].rank)
        other.share().exchange.charged(gate.share().exchange.take_charges(), {})
    ranks.append(reserves(gate.handle(Arrive(quarter("last", tenant="a")), 3.0))[0].rank)
    known = [rank.virtual for rank in ranks if rank is not None]
    assert known[0] == known[1] == known[2] == 0.0, "others that wait for the same tenant come by their deadlines"
    assert known[3] > 0.0
    there = other.share().rank(Waiting(quarter("there", tenant="a"), 3.0)).virtual
    assert known[3] < there == round(other.queue.virtual(quarter("there", tenant="a")))


@pytest.mark.parametrize("answer", [Answer.ROOM, Answer.SEATS, Answer.HEAD, Answer.STALE, Answer.FENCED, Answer.RECOVERING])
def test_a_refusal_gives_charge_and_lease_back_and_the_request_waits(answer: Answer) -> None:
    gate = filled(gate_of(), 2)
    before = account(gate)
    effects = gate.handle(Arrive(quarter("new")), 1.0)
    assert names(effects) == ["new"]
    assert account(gate)[0] != before[0]
    tell(gate, 2, 1.0)
    told = account(gate)[2][0] - gate.fleet.books["r0"].ledger.own()
    effects = gate.handle(Refused("new", answer, retry_s=0.05), 1.0)
    assert [type(one) for one in effects] == [Release]
    virtual, leases, totals = account(gate)
    assert virtual == pytest.approx(before[0])
    assert leases == before[1]
    assert np.allclose(totals[0], before[2][0] + told)
    assert gate.queue.position("new") == 1
    assert not names(gate.handle(Tick(), 1.2))
    assert names(tell(gate, 0, 1.3)) == ["new"]
    assert account(gate)[0] != pytest.approx(before[0])


def test_a_refused_head_keeps_its_place_before_others_of_its_tenant() -> None:
    gate = filled(gate_of())
    for name, deadline_s in (("first", 50.0), ("second", 60.0)):
        assert not names(gate.handle(Arrive(quarter(name, deadline_s=deadline_s)), 1.0))
    gate.handle(Finished("run0", Outcome.COMPLETED, 15), 1.1)
    assert names(gate.handle(Finished("run1", Outcome.COMPLETED, 15), 1.1)) == ["first", "second"]
    tell(gate, 2, 1.1)
    assert not names(gate.handle(Refused("second", Answer.ROOM), 1.1))
    assert not names(gate.handle(Refused("first", Answer.ROOM), 1.1))
    gate.handle(Arrive(quarter("third", deadline_s=70.0)), 1.1)
    assert [entry.demand.request_id for entry in gate.queue.order()] == ["first", "second", "third"]
    assert gate.queue.tokens == 3 * 385


def test_one_put_back_expires_once_and_not_later() -> None:
    gate = filled(gate_of())
    gate.handle(Arrive(quarter("late", deadline_s=5.0)), 1.0)
    assert names(gate.handle(Finished("run0", Outcome.COMPLETED, 15), 1.1)) == ["late"]
    tell(gate, 1, 1.1)
    gate.handle(Refused("late", Answer.ROOM), 1.1)
    assert gate.queue.deadline_s_next() == 5.0
    (shed,) = gate.handle(Tick(), 5.0)
    assert type(shed).__name__ == "Shed"
    assert not gate.handle(Tick(), 5.1)


def test_one_held_off_for_a_better_head_does_not_spin() -> None:
    gate = gate_of()
    assert names(gate.handle(Arrive(quarter("a")), 1.0)) == ["a"]
    assert not names(gate.handle(Refused("a", Answer.HEAD, retry_s=0.05), 1.0))
    assert gate.fleet.books["r0"].binding_last is Binding.PEERS
    assert not names(gate.handle(Tick(), 1.04))
    assert names(gate.handle(Tick(), 1.06)) == ["a"]


def test_a_store_that_refuses_what_fits_here_is_not_asked_without_end() -> None:
    gate, asked, now_s = gate_of(), 1, 1.0
    assert names(gate.handle(Arrive(quarter("a")), now_s)) == ["a"]
    for _ in range(100):  # a round trip of one millisecond each
        now_s += 0.001
        effects = gate.handle(Refused("a", Answer.ROOM) if gate.open_requests else Tick(), now_s)
        asked += len(names(effects))
    assert 2 <= asked <= 5


def test_it_goes_to_another_replica_meanwhile() -> None:
    gate = gate_of("r0", "r1")
    (first,) = reserves(gate.handle(Arrive(quarter("a")), 1.0))
    (second,) = reserves(gate.handle(Refused("a", Answer.HEAD, retry_s=0.05), 1.0))
    assert {first.lease.replica, second.lease.replica} == {"r0", "r1"}
    assert first.lease.lease_id != second.lease.lease_id
    assert isinstance(gate.handle(Granted("a"), 1.0)[0], Forward)


def test_an_offer_is_taken_at_once() -> None:
    gate = gate_of()
    gate.handle(Arrive(quarter("a")), 1.0)
    gate.handle(Refused("a", Answer.HEAD, retry_s=5.0), 1.0)
    assert names(gate.handle(Offered("r0"), 1.01)) == ["a"]


def test_an_offer_is_believed_before_the_others_end_is_heard_of() -> None:
    gate = gate_of()
    tell(gate, 4, 1.0)
    for name, priority in (("low", 0), ("high", 1)):
        gate.handle(Arrive(quarter(name, priority=priority)), 1.0)
    assert len(gate.queue) == 2
    assert names(gate.handle(Offered("r0"), 1.01)) == ["high"]
    assert not names(gate.handle(Offered("gone"), 1.01))
    gate.handle(Refused("high", Answer.ROOM), 1.02)
    assert len(gate.queue) == 2, "it was wrong, and nothing came of it"


def test_refused_and_no_room_in_the_queue_is_an_honest_answer() -> None:
    gate = Gate(policy(requests_max=0), 0.0)
    gate.share()
    gate.handle(ReplicaFound(spec("r0")), 0.0)
    assert names(gate.handle(Arrive(quarter("a")), 1.0)) == ["a"]
    effects = gate.handle(Refused("a", Answer.HEAD, retry_s=0.05), 1.0)
    assert [type(one).__name__ for one in effects] == ["Release", "Shed"]
    assert gate.open_requests == 0


# ---- heads


def test_the_first_of_every_priority_is_put_forward() -> None:
    gate = filled(gate_of())
    gate.handle(record(gate, now_s=0.7), 0.7)
    for name, priority in (("low", 0), ("low2", 0), ("high", 5)):
        gate.handle(Arrive(quarter(name, priority=priority, deadline_s=90.0)), 1.0)
    gate.handle(Tick(), 1.1)
    heads = gate.share().heads(1.1)["r0"]
    assert [head.head_id for head in heads] == ["high", "low"]
    assert heads[0].rank < heads[1].rank
    record_now = gate.share().book("r0")
    assert record_now is not None
    assert record_now.record is not None
    for head in heads:
        assert head.anchor_steps == pytest.approx(record_now.record.steps_at(1.1 + STORE_AHEAD_S))
        assert head.anchor_steps < head.ready_steps <= head.anchor_steps + 32.0, "those who run end within 15 tokens"
        assert curves_of(head.row)[2].max() == 25.0
    assert heads[0].rank == gate.share().rank(next(gate.queue.order()))


def test_a_head_is_put_forward_wherever_it_may_find_room_and_promised_it_on_one_replica() -> None:
    gate = gate_of("r0", "r1")
    for name in ("r0", "r1"):
        gate.handle(record(gate, name), 0.0)
    for index in range(8):
        gate.handle(Arrive(quarter(f"run{index}")), 0.2 * index)
        gate.handle(Granted(f"run{index}"), 0.2 * index)
    gate.handle(Arrive(quarter("waits")), 1.5)
    gate.handle(Tick(), 1.55)
    heads = gate.share().heads(1.55)
    assert [head.head_id for name in ("r0", "r1") for head in heads[name]] == ["waits", "waits"]
    assert sorted(head.ready_steps == inf for (head,) in heads.values()) == [False, True]


def test_without_a_record_nobody_can_be_put_forward() -> None:
    gate = filled(gate_of())
    gate.handle(Arrive(quarter("waits")), 1.0)
    assert gate.share().heads(1.1) == {"r0": []}


# ---- without the store


def test_apart_each_fills_its_share_and_goes_back_to_sharing() -> None:
    gate = gate_of()
    gate.handle(record(gate), 0.0)
    gate.handle(Observed(scrape("r0", 0.5, engine_sample(usage=0.01))), 0.5)
    gate.fleet.books["r0"].reconciler.follow(0.0, 0.0)
    gate.share().lost(2, 1.0)
    assert not gate.fleet.books["r0"].feedback.following
    admitted = [name for index in range(4) for name in names(gate.handle(Arrive(quarter(f"n{index}")), 1.0 + 0.2 * index))]
    assert admitted == ["n0"], "99 blocks are free, and half of them are ours"
    gate.share().back()
    assert names(tell(gate, 0, 2.0)) == ["n1", "n2", "n3"]


def test_a_share_grows_with_what_is_measured() -> None:
    gate = gate_of()
    gate.share().lost(2, 0.0)
    gate.handle(Observed(scrape("r0", 0.5, engine_sample(usage=0.9, running=4))), 0.5)
    gate.handle(Arrive(quarter("a")), 0.5)
    assert len(gate.queue) == 1
    gate.handle(Observed(scrape("r0", 1.0, engine_sample(usage=0.3, running=1))), 1.0)
    assert gate.open_requests == 1


@pytest.mark.parametrize(("measured", "granted"), [(0.4, True), (0.8, False)])
def test_a_time_out_counts_as_granted_where_the_share_has_room(measured: float, granted: bool) -> None:
    gate = gate_of()
    gate.handle(Observed(scrape("r0", 0.5, engine_sample(usage=measured))), 0.5)
    tell(gate, 1, 0.5)
    gate.fleet.books["r0"].reconciler.follow(0.0, 0.0)
    (effect,) = reserves(gate.handle(Arrive(quarter("a")), 0.6))
    assert gate.share().has_share("r0", effect.lease.lease_id, 2, 0.7) is granted


def test_a_lost_engine_that_another_saw_restart_frees_its_leases() -> None:
    gate = gate_of()
    told = record(gate)
    gate.handle(told, 0.0)
    gate.handle(Arrive(quarter("a")), 0.2)
    effects = gate.handle(RecordTold(replace(told.record, engine_epoch=1), STORE_AHEAD_S + 1.0), 1.0)
    assert [type(one) for one in effects] == [Release]
    assert gate.open_requests == 0
    assert names(gate.handle(Granted("a"), 1.1)) == [], "its server is asked no more, and there is no other"


def test_rows_of_requests_add_up_to_the_row() -> None:
    gate = gate_of()
    rows = [reserves(gate.handle(Arrive(quarter(f"q{index}")), 0.0))[0].row for index in range(3)]
    shared = gate.share().book("r0")
    assert shared is not None
    row = shared.row(0.0)
    assert row is not None
    drawn = rows[-1]
    assert isinstance(drawn, np.ndarray)
    assert np.allclose(curves_of(row), 3.0 * curves_of(drawn))
    total = np.sum([curves_of(one.row() if isinstance(one, Level) else one) for one in rows if one is not None], axis=0)
    assert (curves_of(row) <= total + 1e-9).all(), "never more than what the store was told at first"
    assert np.allclose(row_of(load_of(row), curves_of(row)), row)
