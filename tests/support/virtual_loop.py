"""Real sockets in virtual time: an event loop whose time passes only while nothing is to be done.

Everything in it, clients, kvgate and mock replicas, talks real HTTP over the loopback in one process. When no callback is due and no socket
has anything to read, time jumps to the next timer: a step of an engine then takes what its model says and what programs compute takes
nothing, on any machine. So what such a run shows is what kvgate decides and in which order bytes come, and nothing of what it costs.

What would run in a thread runs at once, in the loop, and raises there.

Fails: TimeoutError after ``STUCK_S`` of the machine's time with nothing to wait for.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from unittest.mock import patch

from proxy.adapters.clock import SystemClock

SETTLE_S = 0.0005  # of the machine's time: what was written to the loopback is there
STUCK_S = 60.0
TICK_S = 1e-6  # a timer that rounding lets off a moment early, and that is set again to the same moment, would go on for ever
T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Looks at the sockets; where the loop would sleep, its time jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        for patience_s in (0.0, SETTLE_S if timeout is None or timeout > 0.0 else 0.0, STUCK_S if timeout is None else 0.0):
            found: list[tuple[selectors.SelectorKey, int]] = super().select(patience_s)
            if found:
                return found
        if timeout is None:
            raise TimeoutError(f"nothing came in {STUCK_S:g} s, and no timer is set")
        if timeout > 0.0:
            self.now_s += timeout + TICK_S
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds."""
        return self._jumping.now_s


def _at_once(executor: Any, func: Callable[..., T], /, *args: Any, **named: Any) -> Future[T]:
    del executor
    future: Future[T] = Future()
    future.set_result(func(*args, **named))
    return future


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run it to its end, in virtual time."""
    with (
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
        patch.object(SystemClock, "now_s", lambda _: runner.get_loop().time()),
        patch.object(ThreadPoolExecutor, "submit", _at_once),
    ):
        return runner.run(main)
