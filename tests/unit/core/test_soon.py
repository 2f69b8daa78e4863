"""What is told to the other proxies soon: at once when it comes alone, together when it does not, never forgotten."""

from math import inf

import pytest

from proxy.core.events import Granted
from proxy.core.shared_ledger import SharedLedger
from proxy.core.soon import GAP_S, HEADS, TOGETHER_S, Soon
from tests.support.member_side import Side


def test_a_change_that_comes_alone_is_told_at_once() -> None:
    soon = Soon()
    assert soon.changed("r0", 1.0) == pytest.approx(1.0 + TOGETHER_S)
    assert not soon.due("r0", 1.0)
    assert soon.due("r0", 1.0 + TOGETHER_S)
    assert "r0" in soon
    soon.told("r0", 1.01)
    assert "r0" not in soon
    assert soon.put_off(1.01, {"r0"}) == inf


def test_many_changes_are_told_together() -> None:
    soon = Soon()
    soon.changed("r0", 1.0)
    soon.told("r0", 1.002)
    assert soon.changed("r0", 1.003) == pytest.approx(1.002 + GAP_S)
    assert soon.changed("r0", 1.021) == pytest.approx(1.002 + GAP_S), "a later one does not put off the first"
    assert soon.changed("r1", 1.021) == pytest.approx(1.023), "another replica is told by itself"


def test_what_nobody_waits_for_is_told_when_somebody_does() -> None:
    soon = Soon()
    assert soon.changed("r0", 1.0, wanted=False) == inf
    assert soon.put_off(9.0, {"r0"}) == inf
    assert "r0" in soon
    assert soon.changed("r0", 9.0) == pytest.approx(9.0 + TOGETHER_S)
    assert soon.changed("r0", 9.001, wanted=False) == pytest.approx(9.0 + TOGETHER_S)


def test_what_could_not_be_told_is_tried_again_and_what_is_gone_is_forgotten() -> None:
    soon = Soon()
    for name in ("r0", "r1", HEADS):
        soon.changed(name, 1.0)
    soon.told("r1", 1.001)
    assert soon.put_off(1.01, {"r0", "r1"}) == pytest.approx(1.01 + GAP_S)
    assert soon.due(HEADS, 1.01 + GAP_S)
    assert soon.put_off(1.02, set()) == pytest.approx(1.01 + GAP_S)
    assert "r0" not in soon
    assert HEADS in soon


def test_the_store_hears_of_room_before_it_is_asked_for_it() -> None:
    """All of it in one batch: the row without what ended and without what is asked for, then the reservation, which fits only then."""
    ledger = SharedLedger()
    side, other = Side(ledger, "a"), Side(ledger, "b")
    side.beats(0.0, 5)
    other.beats(0.0, 5)
    assert side.reserve("old", 60.0, 0.6) == [Granted("old")]
    assert other.reserve("theirs", 30.0, 0.6) == [Granted("theirs")]
    side.gate.fleet.books["r0"].room_ratio = 0.1  # as a refresh finds it
    side.member.freed("r0", 0.61)
    assert side.reserve("new", 60.0, 0.61)[-1] == Granted("new")
    assert ledger.accounts["r0"].total[0] == 2.0
