"""A proxy that takes room ahead at the store: which requests go by it, what the others see of it, and when it gives it back."""

from dataclasses import replace

import pytest

from proxy.core.ahead import LIVES_S, SHUNS_S, amounts_of, level_blocks
from proxy.core.events import Arrive, Cancelled, Event, Granted, Observed, Refused, ReplicaFound, ReplicaGone, Reserve, Tick
from proxy.core.replica import ReplicaSpec
from proxy.core.shared import Answer, Head, Rank
from proxy.core.shared_ledger import SharedLedger
from proxy.core.store_calls import CallAdvance, CallReserve, CallRewrite
from tests.support.builders import demand, engine_sample, scrape
from tests.support.member_side import BEAT_S, POLICY, STORE_AHEAD_S, Side

USABLE = 1000
SPEC = ReplicaSpec("r0", ("m",), USABLE, 16, 4096)
BEGAN_S = 3.0  # the store's recovery is over by then


def side_of(ledger: SharedLedger, name: str = "a", ratio: float = 0.0625) -> Side:
    """A proxy that shares."""
    policy = replace(POLICY, store=replace(POLICY.store, ahead_ratio=ratio))
    side = Side(ledger, name, spec=SPEC, policy=policy)
    side.beats(0.0, 30)
    assert side.member.touch.sharing
    return side


def arrive(side: Side, name: str, now_s: float, *, prompt: int = 100) -> list[Event]:
    """One request, through the gate; returns what the gate was told without any call, and then by the store."""
    events: list[Event] = []
    for effect in side.gate.handle(Arrive(demand(name, prompt=prompt, arrived_s=now_s)), now_s):
        assert isinstance(effect, Reserve)
        events += side.member.reserve(effect, now_s)
    for event in events:
        side.gate.handle(event, now_s)
    return events


def busy(side: Side, now_s: float = BEGAN_S, count: int = 3) -> None:
    """So many requests, the store's answers in between."""
    for index in range(count):
        arrive(side, f"{now_s:g}.{index}", now_s)
        side.carry(now_s)


def left(side: Side) -> float:
    """Blocks that it has ahead, by their means."""
    return side.member.advances.blocks


def test_the_third_request_waits_for_no_answer() -> None:
    side = side_of(SharedLedger())
    side.called.clear()
    assert arrive(side, "one", BEGAN_S) == []
    assert [type(call) for call in side.member._calls] == [CallReserve]
    side.carry(BEGAN_S)
    assert arrive(side, "two", BEGAN_S) == [], "the first of its kind took nothing ahead"
    side.carry(BEGAN_S)
    assert [type(call) for call in side.called] == [CallReserve, CallReserve, CallAdvance]
    assert left(side) > 0.0
    assert arrive(side, "three", BEGAN_S) == [Granted("three")]
    assert side.member.advances.granted_total == 1
    assert side.gate.open_requests == 3


def second_asked(side: Side) -> CallReserve:
    """The call for a second request, whose answer lets an advance be asked for."""
    busy(side, count=1)
    arrive(side, "two", BEGAN_S)
    (two,) = side.member.take_calls()
    assert isinstance(two, CallReserve)
    return two


def test_requests_that_come_while_an_advance_is_under_way_leave_it_to_its_answer() -> None:
    side = side_of(SharedLedger())
    two = second_asked(side)
    side.member._calls = []

    def answered(call: CallReserve | CallAdvance) -> None:
        store_s = BEGAN_S + STORE_AHEAD_S
        reply = side.ledger.reserve(call.ask, store_s)
        for event in side.member.answered(call, reply, store_s=store_s, asked_s=BEGAN_S, now_s=BEGAN_S):
            side.gate.handle(event, BEGAN_S)

    answered(two)
    (advance,) = side.member.take_calls()
    assert isinstance(advance, CallAdvance)
    arrive(side, "three", BEGAN_S)
    (three,) = side.member.take_calls()
    assert isinstance(three, CallReserve)
    answered(three)
    assert side.member.take_calls() == [], "it is under way"
    assert side.member._upto("r0") == advance.ask.number - 1
    answered(advance)
    assert left(side) > 0.0
    assert arrive(side, "four", BEGAN_S) == [Granted("four")]


def test_the_others_see_what_is_taken_ahead_and_what_goes_by_it_changes_nothing_for_them() -> None:
    ledger = SharedLedger()
    side = side_of(ledger)
    busy(side, count=2)
    account = ledger.accounts["r0"]
    before = account.free_blocks()
    side.called.clear()
    assert arrive(side, "three", BEGAN_S) == [Granted("three")]
    side.beats(BEGAN_S + 0.01, 2)
    more = [level_blocks(amounts_of(call.ask.row), 0.0) for call in side.called if isinstance(call, CallAdvance)]
    assert account.entries["a"].grants == {}, "all of it is in the row"
    assert account.free_blocks() + sum(more) == pytest.approx(before, abs=3.0), "what was ahead is a request now"
    assert left(side) > 0.0


def test_it_stays_within_its_part_of_the_ratio() -> None:
    side = side_of(SharedLedger(), ratio=0.1)
    side.member.proxies = 2
    busy(side, count=12)
    advance = side.member.advances._by_replica["r0"]
    assert 0.0 < level_blocks(advance.left, side.gate.fleet.books["r0"].feedback.z) <= 0.1 * USABLE / 2 + 1e-9


def test_a_ratio_of_nothing_asks_the_store_for_every_request() -> None:
    side = side_of(SharedLedger(), ratio=0.0)
    busy(side, count=5)
    assert not any(isinstance(call, CallAdvance) for call in side.called)
    assert sum(isinstance(call, CallReserve) for call in side.called) == 5


def test_what_nobody_uses_is_given_back() -> None:
    ledger = SharedLedger()
    side = side_of(ledger)
    busy(side, count=2)
    for name in list(side.gate.fleet.books["r0"].ledger.leases):
        side.gate.handle(Cancelled(name.rsplit(".", 1)[0]), BEGAN_S)
        side.member.freed("r0", BEGAN_S)
    now_s = side.beats(BEGAN_S + 0.01, 2)
    assert ledger.accounts["r0"].total.any(), "the advance alone"
    side.beats(now_s, round(LIVES_S / BEAT_S) + 2)
    assert left(side) == 0.0
    assert not ledger.accounts["r0"].total.any()


def test_it_is_given_back_where_it_is_roomy_no_more() -> None:
    ledger = SharedLedger()
    side, other = side_of(ledger), side_of(ledger, "b")
    busy(side, count=3)
    assert left(side) > 0.0
    assert other.reserve("large", 600.0, BEGAN_S) == [Granted("large")]
    now_s = side.beats(BEGAN_S + 0.01, 2)
    side.gate.handle(Tick(), now_s + 0.5)
    side.beats(now_s + 0.5, 2)
    assert left(side) == 0.0
    assert side.gate.fleet.books["r0"].room_ratio < 0.5
    assert arrive(side, "next", now_s + 1.0) == [], "the store is asked"


def test_it_is_not_used_while_anybody_waits_here() -> None:
    side = side_of(SharedLedger())
    busy(side, count=3)
    side.member._heads._ids = ("somebody",)
    assert arrive(side, "next", BEGAN_S) == [], "the store drops the head with the grant"


def test_a_refusal_gives_it_back_and_asks_again_when_the_store_knows() -> None:
    ledger = SharedLedger()
    side = side_of(ledger)
    busy(side, count=3)
    assert left(side) > 0.0
    side.called.clear()
    side.member.advances._by_replica["r0"].until_s = 0.0
    arrive(side, "large", BEGAN_S)
    account = ledger.accounts["r0"]
    account.record = replace(account.record, usable_blocks=1)
    (refused,) = [event for event in side.carry(BEGAN_S) if isinstance(event, Refused)]
    assert refused.answer is Answer.ROOM
    assert refused.retry_s > 0.0
    assert [type(call) for call in side.called] == [CallReserve, CallRewrite]
    assert left(side) == 0.0


def test_an_advance_that_is_refused_is_not_asked_for_again_at_once() -> None:
    ledger = SharedLedger()
    side = side_of(ledger)
    busy(side, count=1)
    arrive(side, "two", BEGAN_S)
    (call,) = side.member.take_calls()
    assert isinstance(call, CallReserve)
    reply = ledger.reserve(call.ask, BEGAN_S + STORE_AHEAD_S)
    for event in side.member.answered(call, reply, store_s=BEGAN_S + STORE_AHEAD_S, asked_s=BEGAN_S, now_s=BEGAN_S):
        side.gate.handle(event, BEGAN_S)
    account = ledger.accounts["r0"]
    account.record = replace(account.record, usable_blocks=1)
    side.carry(BEGAN_S)
    account.record = replace(account.record, usable_blocks=USABLE)
    assert side.member.advances.refused_total == 1
    busy(side, BEGAN_S + SHUNS_S - 0.01, 3)
    assert left(side) == 0.0


def test_a_head_of_another_proxy_gets_its_room_before_any_is_taken_ahead() -> None:
    ledger = SharedLedger()
    side = side_of(ledger)
    busy(side, count=1)
    book = side.member.several.book("r0")
    assert book is not None
    row = book.row_of_newcomer(next(iter(side.gate.leases._open.values())).entry)  # type: ignore[attr-defined]
    ledger.register("b", BEGAN_S + STORE_AHEAD_S)
    ledger.set_heads("b", "r0", [Head("h", Rank(0.0, 1e9, 1e9), row, 0.0, 0.0)], BEGAN_S + STORE_AHEAD_S)
    arrive(side, "two", BEGAN_S)
    side.carry(BEGAN_S)
    assert left(side) == 0.0


def test_a_new_engine_and_a_lost_store_leave_nothing_of_it() -> None:
    ledger = SharedLedger()
    side = side_of(ledger)
    busy(side, count=3)
    side.gate.handle(Observed(scrape("r0", BEGAN_S, engine_sample(), new_epoch=True)), BEGAN_S)
    assert arrive(side, "next", BEGAN_S) == [], "the engine is another"
    side.carry(BEGAN_S)
    busy(side, BEGAN_S + 0.1, 3)
    assert left(side) > 0.0
    side.deaf = True
    side.beats(BEGAN_S + 0.2, 3)
    assert not side.member.touch.sharing
    assert left(side) == 0.0
    assert arrive(side, "apart", BEGAN_S + 1.0) == [Granted("apart")]
    assert side.member.granted_apart_total == 1


def test_an_advance_that_was_never_answered_is_settled_by_the_next_row() -> None:
    ledger = SharedLedger()
    side = side_of(ledger)
    busy(side, count=2)
    advance = side.member.advances._by_replica["r0"]
    while any(advance.left):
        arrive(side, f"more{advance.left[0]}", BEGAN_S)
        calls = [call for call in side.member.take_calls() if isinstance(call, CallAdvance)]
        if calls:
            break
    (call,) = calls
    assert ledger.reserve(call.ask, BEGAN_S + STORE_AHEAD_S).answer is Answer.GRANTED, "and the answer is lost"
    assert side.member._upto("r0") == call.ask.number - 1, "until then the row does not answer for it"
    assert side.member.failed(call, asked_s=BEGAN_S - 1.0, now_s=BEGAN_S + 0.1) == []
    side.beats(BEGAN_S + 0.2, 5)
    assert call.ask.number not in ledger.accounts["r0"].entries["a"].grants
    assert side.member.advances.refused_total == 1


def test_replicas_that_went_leave_nothing_here() -> None:
    side = side_of(SharedLedger())
    busy(side, count=2)
    side.gate.handle(ReplicaGone("r0"), BEGAN_S)
    side.gate.handle(ReplicaFound(replace(SPEC, name="r1")), BEGAN_S)
    side.beats(BEGAN_S, 10)
    busy(side, BEGAN_S + 1.0, count=3)
    assert set(side.member.advances._by_replica) == set(side.member.advances._amounts) == {"r1"}


def test_an_advance_whose_time_out_shows_that_the_store_is_gone_is_counted_as_well() -> None:
    side = side_of(SharedLedger())
    two = second_asked(side)
    reply, store_s = side.ledger.reserve(two.ask, BEGAN_S + STORE_AHEAD_S), BEGAN_S + STORE_AHEAD_S
    side.member.answered(two, reply, store_s=store_s, asked_s=BEGAN_S, now_s=BEGAN_S)
    (advance,) = side.member.take_calls()
    side.member.failed(advance, asked_s=BEGAN_S + 0.1, now_s=BEGAN_S + 0.2)
    assert not side.member.touch.sharing
    assert side.member.advances.refused_total == 1
