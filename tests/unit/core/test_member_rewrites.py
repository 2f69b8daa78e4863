"""When a proxy writes its rows anew: what ended where nobody can be waiting for it is no hurry, and replicas take turns."""

from dataclasses import replace

import pytest

from proxy.core.events import Arrive, Cancelled, Granted, ReplicaFound, Reserve
from proxy.core.roomy import ROOMY_RATIO
from proxy.core.rows_written import ROOMY_S, UNTOLD, RowsWritten
from proxy.core.shared_ledger import SharedLedger
from proxy.core.soon import TOGETHER_S
from proxy.core.store_calls import CallReserve, CallRewrite
from tests.support.builders import demand
from tests.support.member_side import BEAT_S, SPEC, Side


@pytest.mark.parametrize(("room_ratio", "told_blocks", "sequences_max", "waits", "soon"), [
    (ROOMY_RATIO, 50.0, None, False, False),
    (ROOMY_RATIO - 0.01, 50.0, None, False, True),
    (ROOMY_RATIO, 49.9, None, False, True),
    (ROOMY_RATIO, 50.0, 2, False, False),
    (ROOMY_RATIO, 50.0, 1, False, True),
    (ROOMY_RATIO, 50.0, None, True, True),
])  # fmt: skip
def test_what_ends_where_nobody_can_be_waiting_is_told_with_the_next_rewrite(
    room_ratio: float, told_blocks: float, sequences_max: int | None, waits: bool, soon: bool
) -> None:
    side = Side(SharedLedger(), "a")
    now_s = side.beats(0.0, 6) - BEAT_S
    (reserve,) = side.gate.handle(Arrive(demand("q", arrived_s=now_s)), now_s)
    assert isinstance(reserve, Reserve)
    side.member.reserve(reserve, now_s)
    side.carry(now_s)
    if waits:
        assert side.gate.handle(Arrive(demand("w", prompt=1500, arrived_s=now_s)), now_s) == []
    book = side.gate.fleet.books["r0"]
    book.room_ratio, book.saturation.sequences_max = room_ratio, sequences_max
    shared = side.member.several.book("r0")
    assert shared is not None
    assert 50.0 < shared.free_blocks_told < 100.0, "the store said so with the grant"
    shared.free_blocks_told = told_blocks
    due_s = side.member.due_s
    side.member.freed("r0", now_s + 0.001)
    assert (side.member.due_s == pytest.approx(now_s + 0.001 + TOGETHER_S)) is soon
    assert (side.member.due_s == due_s) is not soon
    book.room_ratio = 0.0  # it filled meanwhile: whoever asks for what ended has it told first
    assert side.reserve("new", 5.0, now_s + 0.001) == [Granted("new")]
    assert [type(call) for call in side.called[-2:]] == [CallRewrite, CallReserve]


def test_replicas_take_turns_within_the_time_in_which_a_change_is_told() -> None:
    side = Side(SharedLedger(), "a")
    names = ["r0", *(f"r{index}" for index in range(1, 8))]
    for name in names[1:]:
        side.gate.handle(ReplicaFound(replace(SPEC, name=name)), 0.0)
    now_s = side.beats(0.0, 5)
    for book in side.gate.fleet.books.values():
        book.ledger.own_changes += 1
    side.called.clear()
    end_s, written = now_s + BEAT_S, []
    while side.member.due_s < end_s:
        at_s = side.member.due_s
        side.member.beat(at_s)
        side.carry(at_s)
        written.append([call.key for call in side.called if isinstance(call, CallRewrite)])
        side.called.clear()
    assert sorted(name for turn in written for name in turn) == names
    assert max(map(len, written)) == 2


@pytest.mark.parametrize(("roomy", "known", "age_s", "stale"), [
    (True, 1, ROOMY_S - 0.001, False),
    (True, 1, ROOMY_S, True),
    (True, UNTOLD, 0.0, True),
    (True, 2, ROOMY_S, True),
    (False, 1, 0.0, True),
    (False, 2, 0.999, False),
    (False, 2, 1.0, True),
])  # fmt: skip
def test_what_changed_where_it_is_roomy_is_told_after_a_while(roomy: bool, known: int, age_s: float, stale: bool) -> None:
    rows = RowsWritten()
    rows.wrote("r0", known, 0.0)
    assert rows.stale("r0", 2, age_s, 1.0, roomy=roomy) is stale
    assert rows.stale("r0", 2, ROOMY_S / 2.0, ROOMY_S / 2.0, roomy=roomy), "a lease so short is renewed all the same"
    assert rows.stale("r1", 2, 0.0, 1.0, roomy=roomy), "of which the store has nothing"


def test_a_roomy_replica_is_written_seldom_until_it_is_roomy_no_more_or_we_have_nothing_there() -> None:
    side = Side(SharedLedger(), "a")
    now_s = side.beats(0.0, 6)
    (reserve,) = side.gate.handle(Arrive(demand("q", arrived_s=now_s)), now_s)
    assert isinstance(reserve, Reserve)
    side.member.reserve(reserve, now_s)
    side.carry(now_s)
    now_s = side.beats(now_s, 1)  # the grant is to be in the row

    def written(beats: int, *, changed: bool = True) -> int:
        nonlocal now_s
        side.called.clear()
        for _ in range(beats):
            side.gate.fleet.books["r0"].ledger.own_changes += changed
            now_s = side.beats(now_s, 1)
        return sum(isinstance(call, CallRewrite) for call in side.called)

    assert written(10) == 10 * BEAT_S / ROOMY_S
    shared = side.member.several.book("r0")
    assert shared is not None
    free_blocks, shared.free_blocks_told = shared.free_blocks_told, 0.0
    assert written(4) == 4
    shared.free_blocks_told = free_blocks
    assert written(4) == 0
    side.gate.handle(Cancelled("q"), now_s)
    assert written(1) == 1, "nothing is left of it: others need not wait to know"
