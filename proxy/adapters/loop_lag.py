"""How late the event loop is: what a callback that is due waits for its turn, measured by one that asks for nothing else.

Every ``INTERVAL_S`` a timer falls due; how much later it runs is one reading. A stall is seen by whichever timer fell into it, by the
part of it that was still to come, so readings are what any callback meets that comes due at some moment.

Fails: a stall shorter than the interval may fall between two readings; over a minute of them hardly any does.
"""

import asyncio
from collections.abc import Callable

from proxy.adapters.stall_proof import Timers

INTERVAL_S = 0.05  # twenty readings a second cost nothing that can be measured


class LoopLag:
    """Tells ``seen`` every reading in seconds, from its making until ``close``."""

    def __init__(self, loop: Timers, seen: Callable[[float], None]) -> None:
        self._loop = loop
        self._seen = seen
        self._due_s = 0.0
        self._wait()

    def _wait(self) -> None:
        self._due_s = self._loop.time() + INTERVAL_S
        self._handle: asyncio.TimerHandle = self._loop.call_later(INTERVAL_S, self._read)

    def _read(self) -> None:
        late_s = max(0.0, self._loop.time() - self._due_s)
        self._wait()
        self._seen(late_s)

    def close(self) -> None:
        """No more readings. Idempotent."""
        self._handle.cancel()
