"""Of a burst a few requests begin in each turn of the loop, in their order, and nobody waits who comes alone."""

from collections.abc import Callable

import pytest

from proxy.adapters.turns import BEGUN_PER_TURN, Turns


class Loop:
    """What is called soon is called by the test."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def turn(self) -> None:
        calls, self.soon = self.soon, []
        for call in calls:
            call()


@pytest.fixture
def loop() -> Loop:
    return Loop()


def begin(turns: Turns, begun: list[int], *numbers: int) -> None:
    for number in numbers:
        turns.begin(lambda number=number: begun.append(number))  # type: ignore[misc]


def test_a_burst_begins_in_its_order_a_few_in_each_turn(loop: Loop) -> None:
    turns, begun = Turns(loop), list[int]()  # type: ignore[arg-type]
    begin(turns, begun, *range(3 * BEGUN_PER_TURN + 1))
    for turn in range(1, 4):
        assert begun == list(range(turn * BEGUN_PER_TURN))
        loop.turn()
    assert begun == list(range(3 * BEGUN_PER_TURN + 1))


def test_who_comes_later_does_not_go_ahead(loop: Loop) -> None:
    turns, begun = Turns(loop), list[int]()  # type: ignore[arg-type]
    begin(turns, begun, *range(BEGUN_PER_TURN + 1))
    loop.turn()  # which begins the last of them, and would have room
    begin(turns, begun, 100)
    assert begun == [*range(BEGUN_PER_TURN + 1), 100]
    begin(turns, begun, *range(200, 200 + BEGUN_PER_TURN))
    assert begun[-1] == 200 + BEGUN_PER_TURN - 3  # a turn's room is for those that waited, too
    loop.turn()
    assert begun[-1] == 200 + BEGUN_PER_TURN - 1


def test_whoever_comes_alone_begins_at_once_and_the_loop_comes_to_rest(loop: Loop) -> None:
    turns, begun = Turns(loop), list[int]()  # type: ignore[arg-type]
    for number in range(3):
        begin(turns, begun, number)
        assert begun[-1] == number
        loop.turn()
        assert not loop.soon
