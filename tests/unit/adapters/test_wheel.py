"""What is due at about the same time shares a timer, and is looked at neither early nor much too late."""

from typing import Any

import pytest

from proxy.adapters.upstream_bounds import STEPS, Over, Patience, Patient, Wheel
from tests.unit.adapters.fake_loop import FakeLoop


class One(Patient):
    """Waits for its first byte and notes when it was given up."""

    def __init__(self, loop: FakeLoop, wheel: Wheel, seconds: float) -> None:
        super().__init__(wheel)
        self._loop = loop
        self._patience = Patience(first_byte_s_max=seconds)
        self._asked_s = loop.now_s
        self.over: list[tuple[float, str]] = []
        self.slow = False
        self._wind(loop.now_s)

    def _client_is_slow(self) -> bool:
        return self.slow

    def _ran_out(self, over: Over) -> None:
        self.over.append((self._loop.now_s - self._asked_s, over.key))


@pytest.fixture
def loop() -> FakeLoop:
    return FakeLoop()


@pytest.fixture
def wheel(loop: FakeLoop) -> Wheel:
    given: Any = loop
    return Wheel(given)


@pytest.mark.parametrize("seconds", [0.0, 0.004, 0.05, 1.0, 7.3, 60.0, 600.0, 86_400.0])
def test_none_is_looked_at_early_or_much_too_late(loop: FakeLoop, wheel: Wheel, seconds: float) -> None:
    one = One(loop, wheel, seconds)
    loop.run()
    ((after_s, key),) = one.over
    assert key == "relay.first_byte"
    assert seconds <= after_s <= seconds + max(seconds, 1e-3) / STEPS + 1e-9


def test_many_share_a_timer(loop: FakeLoop, wheel: Wheel) -> None:
    many = []
    for _ in range(1000):
        many.append(One(loop, wheel, 60.0))
        loop.now_s += 1e-3
    assert loop.timers <= 3
    loop.run()
    assert all(len(one.over) == 1 for one in many)


def test_who_has_stopped_is_not_looked_at(loop: FakeLoop, wheel: Wheel) -> None:
    gone, stays = One(loop, wheel, 1.0), One(loop, wheel, 1.0)
    gone._stop()
    gone._stop()
    loop.run()
    assert gone.over == []
    assert len(stays.over) == 1


def test_one_that_is_not_over_is_looked_at_again(loop: FakeLoop, wheel: Wheel) -> None:
    one = One(loop, wheel, 1.0)
    one._begun, one._patience = True, Patience(first_byte_s_max=1.0, idle_s_max=2.0)
    one._received_s = loop.now_s + 0.9
    loop.run()
    ((after_s, key),) = one.over
    assert key == "relay.idle"
    assert 2.9 <= after_s <= 3.0


def test_a_slow_client_is_no_silence(loop: FakeLoop, wheel: Wheel) -> None:
    one = One(loop, wheel, 1.0)
    one._begun, one.slow, one._patience = True, True, Patience(idle_s_max=2.0, total_s_max=10.0)
    loop.run()
    ((after_s, key),) = one.over
    assert key == "relay.total"
    assert 10.0 <= after_s <= 10.1
