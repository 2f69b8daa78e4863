"""Requests that ended are told of together, each once, and soon."""

import asyncio
from typing import Any, cast

import pytest

from proxy.ports.record import RequestRecord
from proxy.serving.ended import TOGETHER, TOGETHER_MAX, TOGETHER_S, Ended


def _records(count: int) -> list[RequestRecord]:
    return [cast("RequestRecord", f"record {index}") for index in range(count)]


class Timers:
    """Stands in for the loop: what was asked to be called, and after how long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.set: list[tuple[float, Any]] = []
        self.soon: list[Any] = []
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def call_later(self, delay_s: float, call: Any) -> object:
        self.set.append((delay_s, call))
        return object()

    def call_soon(self, call: Any) -> None:
        self.soon.append(call)

    def fire(self) -> None:
        """The oldest is due."""
        self.set.pop(0)[1]()


def test_they_are_told_once_and_in_order_when_the_time_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    timers, told = Timers(monkeypatch), list[RequestRecord]()
    ended = Ended(told.append)
    records = _records(3)
    for record in records:
        ended.add(record)
    assert not told
    assert [delay_s for delay_s, _ in timers.set] == [TOGETHER_S]  # one timer for all of them
    timers.fire()
    assert told == records
    ended.add(records[0])
    assert len(timers.set) == 1  # the next has one of its own


def test_as_many_as_go_together_are_not_waited_with(monkeypatch: pytest.MonkeyPatch) -> None:
    Timers(monkeypatch)
    told = list[RequestRecord]()
    ended = Ended(told.append)
    records = _records(TOGETHER_MAX)
    for record in records[:-1]:
        ended.add(record)
    assert not told
    ended.add(records[-1])
    assert told == records


def test_a_request_that_begins_has_a_few_told_once_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    timers, told = Timers(monkeypatch), list[RequestRecord]()
    ended = Ended(told.append)
    records = _records(TOGETHER)
    for record in records[:-1]:
        ended.add(record)
        ended.begun()
    assert not timers.soon
    ended.add(records[-1])
    ended.begun()
    assert not told  # it goes before them
    timers.soon.pop()()
    assert told == records


def test_who_reads_has_them_at_once_and_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    timers, told = Timers(monkeypatch), list[RequestRecord]()
    ended = Ended(told.append)
    ended.add(_records(1)[0])
    assert repr(ended) == "<Ended untold=1>"
    ended.tell()
    ended.tell()
    timers.fire()
    assert told == _records(1)
    assert not timers.set


def test_one_that_cannot_be_told_takes_none_of_the_others_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    timers, told = Timers(monkeypatch), list[RequestRecord]()
    first, second, third = _records(3)

    def tell(record: RequestRecord) -> None:
        if record is second:
            raise RuntimeError("full")
        told.append(record)

    ended = Ended(tell)
    for record in (first, second, third):
        ended.add(record)
    with pytest.raises(RuntimeError):
        timers.fire()
    assert told == [first]
    timers.fire()
    assert told == [first, third]
