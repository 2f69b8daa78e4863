"""Time-outs that a stall of our own process cannot fire.

A time-out of the event loop measures what the peer does and what we do alike. A process that gets no CPU for a while, or whose loop is
held up, finds the timer due in the very turn in which the peer's answer is ready, and gives up a peer that was never late.

So the time is counted in ``SLICES`` slices, each scheduled when the one before was counted: a stall of any length costs one of them. The
last must have come in time, at most a slice late, so that a loop which has just come back looks at its sockets first; else a further one
is waited for.

Regimes. Free loop: fires after the time set. One stall: later by its length less a slice. A loop whose every turn is slower than two
slices: after ``2 * SLICES`` of its turns. Never fires early.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

SLICES = 5


class Timers(Protocol):
    """What is needed of an event loop."""

    def time(self) -> float:
        """Monotonic seconds."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None], /) -> asyncio.TimerHandle:
        """Call back ``delay`` seconds from now."""
        ...


class StallProofTimer:
    """Calls ``fire`` once, when ``seconds`` have passed in which the loop was there to see; never after ``cancel``."""

    def __init__(self, loop: Timers, seconds: float, fire: Callable[[], None]) -> None:
        self._loop = loop
        self._slice_s = seconds / SLICES
        self._fire = fire
        self._counted = 0
        self._due_s = 0.0
        self._wait()

    def cancel(self) -> None:
        """Stop. Idempotent."""
        self._handle.cancel()

    def _wait(self) -> None:
        self._due_s = self._loop.time() + self._slice_s
        self._handle = self._loop.call_later(self._slice_s, self._count)

    def _count(self) -> None:
        self._counted += 1
        in_time = self._loop.time() - self._due_s <= self._slice_s
        if (self._counted >= SLICES and in_time) or self._counted >= 2 * SLICES:
            self._fire()
        else:
            self._wait()


@asynccontextmanager
async def stall_proof_timeout(seconds: float) -> AsyncIterator[None]:
    """Like ``asyncio.timeout``, on a ``StallProofTimer``. Raises TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        timer = StallProofTimer(loop, seconds, lambda: limit.reschedule(loop.time()))
        try:
            yield
        finally:
            timer.cancel()
