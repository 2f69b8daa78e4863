"""Looks at the policy file and hands on what it says: several times a second, and when somebody asks for it (SIGHUP).

Fails: a file system that does not answer holds the looks up, and nothing else; the policy that rules goes on ruling.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Protocol

from proxy.serving.guard import Guard, InternalFaultError, Part
from proxy.serving.live_policy import LivePolicy

LOOK_S = 0.25  # a change is seen by the second look after it: live within a second, with time for a slow disk

log = logging.getLogger("kvgate.policy")


class Content(Protocol):
    """What a file held."""

    @property
    def text(self) -> bytes:
        """The bytes."""
        ...

    @property
    def modified_s(self) -> float:
        """Wall time."""
        ...

    @property
    def fault(self) -> str:
        """Why it could not be read; "" when it could."""
        ...


class Watched(Protocol):
    """A file."""

    async def look(self, *, sure: bool = False) -> Content | None:
        """What is new in it; with ``sure`` whatever it holds."""
        ...


class PolicyWatch:
    """Keeps the live policy at what the file says."""

    def __init__(self, file: Watched, live: LivePolicy, guard: Guard) -> None:
        self._file = file
        self._guard = guard
        self._live = live
        self._asked = asyncio.Event()

    def reload(self) -> None:
        """Read the file now, even if it seems to be as it was."""
        self._asked.set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._asked.wait()
            try:
                await self._guard.run(Part.FEED, self.look(), ())
            except InternalFaultError as fault:  # told with its trace by the guard
                self._live.refuse((f"{self._live.file}: a fault of kvgate's own kept it from being read: {fault}",))

    async def look(self) -> None:
        """Look once."""
        asked = self._asked.is_set()
        self._asked.clear()
        found = await self._file.look(sure=asked)
        if found is None:
            return
        if asked:
            log.warning("policy.asked file=%s", self._live.file)
        if found.fault:
            self._live.refuse((f"{self._live.file}: got a file that cannot be opened ({found.fault}); allowed a readable file",))
            return
        reviewed = await asyncio.to_thread(self._live.reviewed, found.text)
        if self._live.take(found.text, found.modified_s, reviewed) and asked:
            self._live.refresh()
