"""The way to the shared store in virtual time: order, loss before and after the commit, time-outs, partitions, death."""

import heapq
from collections.abc import Callable
from itertools import count

import pytest

from proxy.sim.store import Span, StoreLink, StoreSettings

TIMEOUT_S = 0.1


class Agenda:
    """A timeline that is played to its end."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (at_s, next(self._serial), action))

    def play(self) -> None:
        while self._heap:
            self.now_s, _, action = heapq.heappop(self._heap)
            action()


class Calls:
    """A hundred calls of one proxy, 10 ms apart: what the store did, and what the proxy heard of it."""

    def __init__(self, settings: StoreSettings, calls: int = 100) -> None:
        self.agenda = Agenda()
        self.link = StoreLink(0, settings, self.agenda, timeout_s=TIMEOUT_S, seed=7)
        self.done: list[int] = []
        self.heard: dict[int, float] = {}
        self.failed: dict[int, float] = {}
        for number in range(calls):
            self.agenda.at(0.01 * number, lambda number=number: self.ask(number))  # type: ignore[misc]

    def ask(self, number: int) -> None:
        def there(store_s: float) -> int:
            assert store_s == self.agenda.now_s
            self.done.append(number)
            return number

        def heard(answer: int) -> None:
            assert answer == number
            self.heard[number] = self.agenda.now_s

        def failed() -> None:
            self.failed[number] = self.agenda.now_s

        self.link.call(there, heard, failed)


def test_calls_take_a_round_trip_of_the_mean_asked_for_and_stay_in_order() -> None:
    calls = Calls(StoreSettings(delay_s=0.004), calls=400)
    calls.agenda.play()
    assert calls.done == sorted(calls.done)
    assert list(calls.heard) == sorted(calls.heard)
    assert not calls.failed
    trips = [heard_s - 0.01 * number for number, heard_s in calls.heard.items()]
    assert sum(trips) / len(trips) == pytest.approx(0.004, rel=0.1)
    assert min(trips) >= 0.002


def test_a_lost_call_fails_after_the_time_out_whether_the_store_has_seen_it_or_not() -> None:
    calls = Calls(StoreSettings(loss=0.3), calls=400)
    calls.agenda.play()
    assert set(calls.heard) | set(calls.failed) == set(range(400))
    assert not set(calls.heard) & set(calls.failed)
    assert len(calls.failed) == pytest.approx(0.3 * 400, rel=0.2)
    assert all(failed_s == pytest.approx(0.01 * number + TIMEOUT_S) for number, failed_s in calls.failed.items())
    committed = set(calls.failed) & set(calls.done)
    assert len(committed) == pytest.approx(0.15 * 400, rel=0.3)


def test_an_answer_that_comes_too_late_is_not_heard_though_the_call_was_done() -> None:
    calls = Calls(StoreSettings(delay_s=1.0), calls=3)
    calls.agenda.play()
    assert calls.done == [0, 1, 2]
    assert not calls.heard
    assert len(calls.failed) == calls.link.failures == 3


def test_a_partition_stops_what_is_asked_in_it_and_nothing_else() -> None:
    calls = Calls(StoreSettings(partitions=(Span(0, 0.3, 0.5), Span(1, 0.0, 9.0))))
    calls.agenda.play()
    assert set(calls.failed) == set(range(30, 50))
    assert not set(calls.failed) & set(calls.done)


def test_pushes_arrive_unless_the_proxy_is_parted() -> None:
    agenda, heard = Agenda(), []
    link = StoreLink(0, StoreSettings(partitions=(Span(0, 1.0, 2.0),)), agenda, timeout_s=TIMEOUT_S)
    for at_s in (0.5, 1.5, 2.5):
        agenda.at(at_s, lambda: link.push(lambda: heard.append(round(agenda.now_s, 1))))
    agenda.play()
    assert heard == [0.5, 2.5]


def test_the_dead_hear_nothing_though_what_they_asked_is_done() -> None:
    calls = Calls(StoreSettings(delay_s=0.05), calls=10)
    calls.agenda.at(0.045, lambda: setattr(calls.link, "alive", False))
    calls.agenda.play()
    assert len(calls.done) == 10
    assert len(calls.heard) + len(calls.failed) < 5


@pytest.mark.parametrize("wrong", [{"loss": 1.5}, {"loss": -0.1}, {"delay_s": -1.0}])
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        StoreSettings(**wrong)  # type: ignore[arg-type]


def test_spans_end_after_they_begin() -> None:
    with pytest.raises(ValueError, match="a start before an end"):
        Span(0, 2.0, 1.0)
