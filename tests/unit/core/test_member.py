"""One proxy among several: registering, sharing, reservations that nobody answers, being given up, who scrapes."""

import pytest

from proxy.core.events import Arrive, Cancelled, Granted, Observed, PeersTold, Refused, Reserve
from proxy.core.lease import Lease
from proxy.core.outcome import Mode
from proxy.core.replica import EngineSample, ReplicaSample
from proxy.core.roomy import ROOMY_RATIO
from proxy.core.shared import Answer, ReserveReply, load_of
from proxy.core.shared_ledger import SharedLedger
from proxy.core.soon import TOGETHER_S
from proxy.core.store_calls import (
    CallHeads,
    CallReserve,
    CallRewrite,
)
from tests.support.builders import demand
from tests.support.member_side import BEAT_S, POLICY, STORE_AHEAD_S, Side


def shares(side: Side) -> bool:
    return side.member.touch.sharing


def test_it_shares_once_the_store_has_every_row() -> None:
    side = Side(SharedLedger(), "a")
    assert side.reserve("early", 60.0, 0.0) == [], "of how many it is one it does not know yet"
    side.beats(0.1, 5)
    assert Granted("early") in side.told
    assert shares(side)
    assert side.member.holds == {"r0"}
    assert side.reserve("q", 30.0, 0.7) == [Granted("q")]
    assert side.ledger.accounts["r0"].total[0] == 1.0, (
        "the gate's own row, which has nothing of the early one, took its grant back"
    )
    assert side.member.granted_apart_total == 0


def test_a_store_that_was_never_reached_is_not_waited_for_twice() -> None:
    side = Side(SharedLedger(), "a", deaf=True)
    assert side.reserve("early", 60.0, 0.0) == []
    side.beats(0.1, 1)
    (event,) = side.told
    assert event in (Granted("early"), Refused("early", Answer.ROOM, BEAT_S))
    assert side.reserve("q", 10.0, 0.3) == [Granted("q")]


def test_the_second_is_refused_what_the_first_has_and_is_told_of_it() -> None:
    ledger = SharedLedger()
    first, second = Side(ledger, "a"), Side(ledger, "b")
    for side in (first, second):
        side.beats(0.0, 5)
    assert first.reserve("q", 70.0, 0.6) == [Granted("q")]
    told, refused = second.reserve("p", 40.0, 0.6)
    assert isinstance(told, PeersTold)
    assert refused == Refused("p", Answer.ROOM, 0.0)
    assert second.gate.fleet.books["r0"].ledger.totals[0].max() == 70.0
    assert second.reserve("o", 20.0, 0.6) == [Granted("o")]


def test_one_that_nobody_answers_is_granted_within_the_own_share_and_no_further() -> None:
    for proxies, granted in ((1, True), (4, False)):
        side = Side(SharedLedger(), "a")
        side.member.proxies = proxies
        side.beats(0.0, 5)
        for name in ("p", "q"):  # 30 to 31 blocks each: the share of one is 100, of four it is 25
            asked = demand(name, prompt=480, cap=16)
            side.gate.fleet.add(Lease(f"{name}.0", asked, "r0", 16, 0.6, side.gate.fleet.books["r0"].steps_now(0.6)))
        side.deaf = True
        (event,) = side.reserve("q", 30.0, 0.6)
        assert isinstance(event, Granted if granted else Refused), proxies
        assert not shares(side)
        assert side.member.unanswered_total == 1
        assert side.reserve("o", 1.0, 0.8) == [Granted("o")], "the gate keeps to its share by itself now"


def test_a_row_is_written_without_what_is_being_asked_for() -> None:
    side = Side(SharedLedger(), "a")
    side.beats(0.0, 5)
    (effect,) = (one for one in side.gate.handle(Arrive(demand("q")), 0.6) if isinstance(one, Reserve))
    assert side.member.reserve(effect, 0.6) == []
    side.member.beat(0.7)
    calls = side.member.take_calls()
    (asked,) = (call for call in calls if isinstance(call, CallReserve))
    (written,) = (call for call in calls if isinstance(call, CallRewrite))
    assert (written.ask.upto, written.ask.row) == (asked.ask.number - 1, None)
    total = side.ledger.accounts["r0"]
    for call in (asked, written):  # the rewrite, made later, leaves the grant alone
        reply = side.answer(call, 0.7 + STORE_AHEAD_S)
        side.member.answered(call, reply, store_s=0.7 + STORE_AHEAD_S, asked_s=0.7, now_s=0.7)
        assert total.total[0] == 1.0
    side.member.beat(0.9)
    (written,) = (call for call in side.member.take_calls() if isinstance(call, CallRewrite))
    assert written.ask.upto == asked.ask.number
    assert written.ask.row is not None
    side.answer(written, 0.9 + STORE_AHEAD_S)
    assert total.total[0] == 1.0, "the grant is in the row now"


def test_who_begins_anew_asks_for_nothing_before_it_has_written() -> None:
    side = Side(SharedLedger(), "a")
    side.beats(0.0, 5)
    side.ledger.flush()
    assert side.reserve("o", 10.0, 0.6) == [Refused("o", Answer.UNKNOWN, 0.0)], "it publishes its record"
    assert side.reserve("p", 10.0, 0.6) == [Refused("p", Answer.FENCED, 0.0)], "it registers"
    assert side.reserve("q", 10.0, 0.65) == []
    side.beats(0.7, 3)
    assert Granted("q") in side.told
    assert side.member.granted_apart_total == 0


def test_heads_are_published_soon_and_taken_back() -> None:
    ledger = SharedLedger()
    first, second = Side(ledger, "a"), Side(ledger, "b")
    for side in (first, second):
        side.beats(0.0, 5)
    second.beats(0.55, 1)
    second.gate.handle(Arrive(demand("big", prompt=1590)), 0.6)  # 100 blocks: it has the whole replica
    second.gate.handle(Arrive(demand("held", prompt=800)), 0.6)
    second.member.waiting(0.6)
    assert second.member.due_s == pytest.approx(0.6 + TOGETHER_S)
    second.member.beat(0.62)
    (call,) = (call for call in second.member.take_calls() if isinstance(call, CallHeads))
    assert [head.head_id for head in call.heads] == ["held"]
    second.gate.handle(Cancelled("held"), 0.63)
    second.member.beat(0.75)
    (call,) = (call for call in second.member.take_calls() if isinstance(call, CallHeads))
    assert not call.heads
    second.member.beat(0.9)
    assert not [call for call in second.member.take_calls() if isinstance(call, CallHeads)]


def test_it_is_back_when_its_rows_are() -> None:
    side = Side(SharedLedger(), "a")
    next_s = side.beats(0.0, 5)
    side.deaf = True
    next_s = side.beats(next_s, 15)  # longer than it may leave a row alone
    assert not shares(side)
    assert side.member.several.proxies_apart == 1
    side.deaf = False
    side.beats(next_s, 1)
    assert shares(side)
    assert side.member.several.proxies_apart is None


def test_given_up_it_begins_anew() -> None:
    side = Side(SharedLedger(), "a")
    next_s = side.beats(0.0, 5)
    side.ledger.forget("a")
    event = side.reserve("q", 10.0, next_s)[-1]
    assert isinstance(event, Refused)
    assert event.answer is Answer.FENCED
    next_s = side.beats(next_s, 3)
    assert side.reserve("p", 10.0, next_s) == [Granted("p")]


def test_an_empty_store_gets_its_records_and_rows_again() -> None:
    side = Side(SharedLedger(), "a")
    next_s = side.beats(0.0, 5)
    side.ledger.flush()
    event = side.reserve("q", 10.0, next_s)[-1]
    assert isinstance(event, Refused)
    assert event.answer is Answer.UNKNOWN
    next_s = side.beats(next_s, 5)
    assert shares(side)
    assert set(side.ledger.accounts) == {"r0"}


def test_one_scrapes_and_another_takes_over_when_it_stops() -> None:
    ledger = SharedLedger()
    first, second = Side(ledger, "a"), Side(ledger, "b")
    for side in (first, second):
        side.beats(0.0, 5)
    assert first.member.scrapes("r0", 0.5)
    assert not second.member.scrapes("r0", 0.5)
    first.gate.handle(Observed(ReplicaSample("r0", 0.5, (EngineSample("0", 0.5, 1, 0),))), 0.5)
    first.member.scraped("r0", 0.5)
    first.carry(0.5)
    second.beats(0.6, 12)
    assert second.gate.fleet.books["r0"].measured_blocks == 50.0, "it is told what the other saw"
    late_s = 0.5 + 2.0 * POLICY.scrape.interval_s + 0.01
    assert second.member.scrapes("r0", late_s)
    second.member.scraped("r0", late_s)
    second.carry(late_s)
    assert second.member.holds == {"r0"}
    first.member.scraped("r0", late_s)
    first.carry(late_s)
    assert not first.member.holds


def test_freed_room_is_told_sooner_than_anything_else() -> None:
    side = Side(SharedLedger(), "a")
    now_s = side.beats(0.0, 5) + 0.001
    side.member.beat(now_s)
    side.carry(now_s)
    book = side.gate.fleet.books["r0"]
    book.room_ratio = ROOMY_RATIO - 0.01
    side.member.freed("r0", now_s + 0.01)
    assert side.member.due_s == pytest.approx(now_s + 0.01 + TOGETHER_S)
    side.member.beat(side.member.due_s)
    (call,) = side.member.take_calls()
    assert isinstance(call, CallRewrite)


def test_an_answer_to_what_was_given_up_is_not_heard() -> None:
    side = Side(SharedLedger(), "a")
    side.beats(0.0, 5)
    side.deaf = True
    side.reserve("q", 10.0, 0.6)
    call = CallReserve.__new__(CallReserve)
    object.__setattr__(call, "request_id", "q")
    assert side.member.answered(call, ReserveReply(Answer.GRANTED, 0.0), store_s=0.0, asked_s=0.6, now_s=0.9) == []


def test_what_goes_whether_it_fits_or_not_is_granted_without_the_store_and_told_to_it() -> None:
    """The gate observes: nothing is asked, and others still see what is there."""
    ledger = SharedLedger()
    side, other = Side(ledger, "a"), Side(ledger, "b")
    side.beats(0.0, 5)
    next_s = other.beats(0.0, 5)
    side.gate.mode = Mode.OBSERVE
    (reserve,) = side.gate.handle(Arrive(demand("q", arrived_s=next_s)), next_s)
    assert isinstance(reserve, Reserve)
    assert side.member.reserve(reserve, next_s) == [Granted("q")]
    assert side.member.take_calls() == []
    assert side.member.granted_apart_total == 0, "the store is in reach"
    side.beats(next_s, 5)
    other.told.clear()
    other.beats(next_s, 5)
    told = [event.others for event in other.told if isinstance(event, PeersTold)]
    assert load_of(told[-1].row).leases == 1.0
