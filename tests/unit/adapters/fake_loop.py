"""An event loop of timers alone, on a time that a test moves."""

import asyncio
import heapq
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any


class FakeHandle:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    """Timers on a time that only ``run`` moves. ``stall_at_s``: from then the loop does not turn for ``stall_s``."""

    def __init__(self, *, stall_at_s: float = 1e9, stall_s: float = 0.0, turn_s: float = 0.0) -> None:
        self.now_s = 100.0
        self._stall = self.now_s + stall_at_s, self.now_s + stall_at_s + stall_s
        self._turn_s = turn_s
        self._order = count()
        self._due: list[tuple[float, int, FakeHandle, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay: float, callback: Callable[[], None], /) -> asyncio.TimerHandle:
        handle = FakeHandle()
        heapq.heappush(self._due, (self.now_s + delay, next(self._order), handle, callback))
        return handle  # type: ignore[return-value]

    def call_at(self, when: float, callback: Callable[..., None], /, *given: Any) -> asyncio.TimerHandle:
        return self.call_later(when - self.now_s, partial(callback, *given))

    @property
    def timers(self) -> int:
        return len(self._due)

    def run(self) -> None:
        """Until no timer is left."""
        while self._due:
            due_s, _, handle, callback = heapq.heappop(self._due)
            self.now_s = max(self.now_s, due_s) + self._turn_s
            begin_s, end_s = self._stall
            if begin_s <= self.now_s < end_s:
                self.now_s = end_s
            if not handle.cancelled:
                callback()
