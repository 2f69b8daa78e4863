"""To whom the store offers room: nobody whom a better head keeps from it, and what a grant leaves at once."""

from proxy.core.shared import Answer, Rank
from tests.support.shared_rows import blocks_row, head
from tests.unit.core.test_shared_ledger import BETTER, Fleet


def test_room_is_not_offered_to_a_head_that_would_delay_a_better_one() -> None:
    fleet = Fleet()
    fleet.rewrite("p0", row=blocks_row(80, until_steps=64))
    fleet.ledger.set_heads("p1", "r0", [head("big", 90, rank=BETTER, ready=64.0)], 0.0)
    fleet.ledger.set_heads("p2", "r0", [head("long", 15)], 0.0)
    assert fleet.rewrite("p0", row=blocks_row(80, until_steps=64)).offered == ()
    fleet.ledger.set_heads("p2", "r0", [head("long", 15), head("small", 5, rank=Rank(0.0, 0.0, 9.0))], 0.0)
    assert fleet.rewrite("p0", row=blocks_row(80, until_steps=64)).offered == ("p2",), "the next one leaves it its room"


def test_what_a_grant_leaves_is_offered_at_once() -> None:
    fleet = Fleet()
    fleet.ledger.set_heads("p1", "r0", [head("first", 30, rank=BETTER)], 0.0)
    fleet.ledger.set_heads("p2", "r0", [head("second", 40)], 0.0)
    assert fleet.rewrite("p0", row=blocks_row(20)).offered == ("p1",)
    assert fleet.ledger.take_offers("p2") == []
    assert fleet.reserve("p1", 30, rank=BETTER).answer is Answer.GRANTED
    assert fleet.ledger.take_offers("p2") == ["r0"]
