"""The lag that is told is the one that a callback met."""

import pytest

from proxy.adapters.loop_lag import INTERVAL_S, LoopLag
from tests.unit.adapters.fake_loop import FakeLoop


def readings(loop: FakeLoop, count: int) -> list[float]:
    """Return the first ``count`` readings; the loop has no timer left after them."""
    seen: list[float] = []

    def take(late_s: float) -> None:
        seen.append(late_s)
        if len(seen) == count:
            lag.close()

    lag = LoopLag(loop, take)
    loop.run()
    return seen


def test_a_free_loop_is_never_late() -> None:
    assert readings(FakeLoop(), 5) == pytest.approx([0.0] * 5, abs=1e-9)


def test_a_stall_is_seen_by_the_part_that_was_still_to_come() -> None:
    stalled = FakeLoop(stall_at_s=2.4 * INTERVAL_S, stall_s=10.0 * INTERVAL_S)
    assert readings(stalled, 5) == pytest.approx([0.0, 0.0, 9.4 * INTERVAL_S, 0.0, 0.0], abs=1e-9)


def test_slow_turns_are_seen_every_time() -> None:
    assert readings(FakeLoop(turn_s=0.02), 4) == pytest.approx([0.02] * 4, abs=1e-9)
