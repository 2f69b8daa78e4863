"""The one guarded place: a fault inside kvgate never fails a request that plain forwarding would have served (design §9).

Any unexpected exception of tokenizer, gate or store ends here: it is logged and counted by part, and the request is relayed under a
static cap per replica instead. ``FAULTS_MAX`` faults within ``WINDOW_S`` trip the guard: every request takes that path at once, loudly,
except one trial every ``TRIAL_S``; the first trial that succeeds ends it, unless another part has failed within ``QUIET_S``.

Nowhere else may a broad ``except`` admit anything; a tidy test holds it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import ParamSpec, TypeVar

from proxy.ports import Clock

T = TypeVar("T")
P = ParamSpec("P")

FAULTS_MAX = 10
WINDOW_S = 10.0
TRIAL_S = 5.0
QUIET_S = 2.0  # four scrapes: a fault beside the requests shows within it

log = logging.getLogger("kvgate.guard")


class Part(StrEnum):
    """What can fail inside kvgate."""

    TOKENIZER = "tokenizer"
    GATE = "gate"
    STORE = "store"
    LEARNING = "learning"
    FEED = "feed"


class InternalFaultError(Exception):
    """A part of kvgate failed; the request is to be relayed without it."""

    def __init__(self, part: Part) -> None:
        super().__init__(f"fault in {part}")
        self.part = part


@dataclass(frozen=True, slots=True)
class StaticPlace:
    """A place under the static cap."""

    replica: str


class Guard:
    """Catches, counts, and decides when to stop trying."""

    def __init__(self, clock: Clock, on_fault: Callable[[Part], None]) -> None:
        self._clock = clock
        self._on_fault = on_fault
        self._faults_s: deque[float] = deque(maxlen=FAULTS_MAX)
        self._trial_s = float("-inf")
        self.tripped = False

    async def run(self, part: Part, work: Awaitable[T], expected: tuple[type[Exception], ...]) -> T:
        """Await ``work``; ``expected`` exceptions pass, every other becomes InternalFaultError(part)."""
        try:
            return await work
        except expected:
            raise
        except Exception as error:
            self._note(part, error)
            raise InternalFaultError(part) from error

    def call(
        self, part: Part, expected: tuple[type[Exception], ...], work: Callable[P, T], *given: P.args, **named: P.kwargs
    ) -> T:
        """As ``run``, of what need not be awaited: a coroutine costs more than many a decision."""
        try:
            return work(*given, **named)
        except expected:
            raise
        except Exception as error:
            self._note(part, error)
            raise InternalFaultError(part) from error

    def run_now(self, part: Part, work: Callable[P, None], *given: P.args, **named: P.kwargs) -> bool:
        """Call ``work`` with what is given, whose failure concerns no request; False when it failed."""
        try:
            work(*given, **named)
        except Exception as error:  # noqa: BLE001  this is the guarded place
            self._note(part, error)
            return False
        return True

    def _note(self, part: Part, error: Exception) -> None:
        now_s = self._clock.now_s()
        self._on_fault(part)
        if part is not Part.FEED:  # a replica's odd answers must not switch admission off
            self._faults_s.append(now_s)
        log.error("internal_error part=%s error=%s", part, type(error).__name__, exc_info=error)  # its message may quote a prompt
        if not self.tripped and len(self._faults_s) == FAULTS_MAX and now_s - self._faults_s[0] <= WINDOW_S:
            self.tripped = True
            self._trial_s = now_s
            log.critical(
                "guard.tripped %d internal faults within %.0f s: kvgate forwards without admission until the fault is gone",
                FAULTS_MAX,
                WINDOW_S,
            )

    def bypassed(self) -> bool:
        """Whether this request is to take the static path at once; False for a trial."""
        if not self.tripped:
            return False
        now_s = self._clock.now_s()
        if now_s - self._trial_s >= TRIAL_S:
            self._trial_s = now_s
            return False
        return True

    def succeeded(self) -> None:
        """A trial was admitted the ordinary way: if nothing else fails either, the fault is gone."""
        if self.tripped and self._clock.now_s() - self._faults_s[-1] >= QUIET_S:
            self.tripped = False
            self._faults_s.clear()
            log.warning("guard.restored admission works again")


class StaticCap:
    """A plain count of requests per replica, for the time that the forecast is not to be had."""

    def __init__(self, cap_per_replica: int) -> None:
        self.cap_per_replica = cap_per_replica
        self._held: dict[str, int] = {}
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def place(
        self, outstanding: Callable[[], Mapping[str, int]], wait_s_max: float, *, capped: bool
    ) -> AsyncIterator[StaticPlace | None]:
        """Wait for a replica below the cap; None when there is none in time. ``outstanding`` is asked for replicas and their load.

        Not ``capped``: only the choice of the replica, for modes that hold nobody.
        """
        replica: str | None = None
        try:
            async with asyncio.timeout(wait_s_max), self._freed:
                while (replica := self._least(outstanding(), capped=capped)) is None:
                    await self._freed.wait()
                self._held[replica] = self._held.get(replica, 0) + 1
        except TimeoutError:
            yield None
            return
        try:
            yield StaticPlace(replica)
        finally:
            self._held[replica] -= 1
            async with self._freed:
                self._freed.notify_all()  # the first in line may wait for another replica

    def _least(self, load: Mapping[str, int], *, capped: bool) -> str | None:
        free = [name for name in load if not capped or self._held.get(name, 0) < self.cap_per_replica]
        return min(free, key=lambda name: (self._held.get(name, 0), load[name]), default=None)
