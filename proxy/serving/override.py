"""What is said by hand, put into force: the mode of the gate and the drains of replicas (``core.override`` decides which word rules).

The mode in force is set here and nowhere else: at a word, at its end, when the store tells another, and when the policy file says
something new. A change of mode fails nobody: who waits in the queue when enforcing ends goes on at once, and what runs keeps its lease.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import Protocol

from proxy.core.events import Event, Tick
from proxy.core.gate import Gate
from proxy.core.override import MODE, WITHDRAWAL_S, Override, Overrides
from proxy.ports import Clock
from proxy.ports.store import StoreError
from proxy.serving.guard import Guard, Part

LOOK_S = 1.0  # between looks at what nobody tells of: the end of an override is late by its own timer only

log = logging.getLogger("kvgate.override")


class Drainable(Protocol):
    """A replica's watcher, as far as it can be told to drain."""

    def drain(self) -> None:
        """Admit nobody to it any more; what runs may finish."""
        ...

    def resume(self) -> None:
        """Admit to it again."""
        ...


class Others(Protocol):
    """The other proxies, as far as they can be told something."""

    async def say(self, override: Override) -> None:
        """Put an override into the store; its time is this proxy's. Raises StoreError."""
        ...


class Switches:
    """Holds one process's overrides and puts them into force."""

    def __init__(self, gate: Gate, clock: Clock, guard: Guard, tell: Callable[[Event], None]) -> None:
        self.overrides = Overrides()
        self.others: Others | None = None  # None: this proxy is alone
        self.said_s = -inf  # when something was last said to all from here: what was read before does not know it
        self._gate = gate
        self._clock = clock
        self._guard = guard
        self._tell = tell
        self._replicas: Mapping[str, Drainable] = {}
        self._draining: dict[str, Drainable] = {}
        self._changed = asyncio.Event()

    def watch_over(self, replicas: Mapping[str, Drainable]) -> None:
        """From now on drains mean these, whoever comes and goes among them."""
        self._replicas = replicas

    async def say(self, override: Override, *, everywhere: bool) -> str | None:
        """Put a word into force here, and at all proxies where ``everywhere``; return why the others were not told, None when they were."""
        log.warning(
            "override.said subject=%s word=%s for=%.0fs by=%s reason=%r everywhere=%s",
            override.subject, override.word, override.until_s - self._clock.now_s(), override.by, override.reason, everywhere,
        )  # fmt: skip
        fault = None
        if everywhere and self.others is not None:
            try:
                await self.others.say(override)
            except StoreError as error:
                fault = str(error)
                log.error("override.not_told_to_others subject=%s error=%s", override.subject, error)  # noqa: TRY400  no trace
            self.said_s = self._clock.now_s()
        self.overrides.say(override)
        self.apply()
        return fault

    async def take_back(self, subject: str, *, reason: str, by: str, serial: str, everywhere: bool) -> str | None:
        """The policy rules again, here or everywhere; return why the others were not told."""
        if everywhere:
            until_s = self._clock.now_s() + WITHDRAWAL_S
            return await self.say(Override(subject, None, reason, by, until_s, serial), everywhere=True)
        log.warning("override.taken_back subject=%s by=%s reason=%r everywhere=False", subject, by, reason)
        self.overrides.take_back(subject)
        self.apply()
        return None

    def hear(self, shared: Mapping[str, Override], asked_s: float) -> None:
        """What the store holds, as it was at ``asked_s`` or after, in this proxy's time."""
        if asked_s >= self.said_s:
            self.overrides.hear(shared)
            self.apply()

    def apply(self) -> None:
        """Put into force what rules now."""
        now_s = self._clock.now_s()
        for over in self.overrides.forget_expired(now_s):
            log.warning("override.over subject=%s word=%s by=%s reason=%r", over.subject, over.word, over.by, over.reason)
        self._set_mode(now_s)
        self._set_drains(now_s)
        self._changed.set()

    def _set_mode(self, now_s: float) -> None:
        gate = self._gate
        mode = self.overrides.mode(gate.policy.mode, now_s)
        if mode is gate.mode:
            return
        said = self.overrides.in_force(MODE, now_s)
        because = "the policy file says so" if said is None else f"{said.by or 'somebody'} said so: {said.reason}"
        log.warning("mode.changed from=%s to=%s because=%r", gate.mode, mode, because)
        gate.mode = mode
        self._guard.run_now(Part.GATE, partial(self._tell, Tick()))

    def _set_drains(self, now_s: float) -> None:
        wanted = {name: self._replicas[name] for name in self.overrides.drains(now_s) if name in self._replicas}
        for name, replica in list(self._draining.items()):
            if wanted.get(name) is not replica:
                del self._draining[name]
                replica.resume()
        for name, replica in wanted.items():
            if name not in self._draining:
                self._draining[name] = replica
                replica.drain()

    async def run(self) -> None:
        """Look when the next override is over, and once a second at what the policy says and which replicas there are."""
        while True:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(LOOK_S, self.overrides.ends_s_next() - self._clock.now_s()))):
                    await self._changed.wait()
                    continue  # what changed is in force; only the time to wait for is another
            self.apply()


def shifted(override: Override, by_s: float) -> Override:
    """The same by a clock that is so far ahead."""
    return replace(override, until_s=override.until_s + by_s)
