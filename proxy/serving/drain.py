"""Ending a process without failing a request.

On SIGTERM ``/ready`` turns 503 at once; for ``drain_accept_s`` requests are still accepted, because load balancers take some seconds to
see that; then new ones are refused with ``draining``; what waits or runs finishes within ``grace_s``; then the process ends.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum

log = logging.getLogger("kvgate.drain")


class DrainPhase(StrEnum):
    """Where the process is in its end."""

    SERVING = "serving"
    ACCEPTING = "accepting"  # unready, still taking requests
    REFUSING = "refusing"


class Drain:
    """Holds the phase and counts requests under way."""

    def __init__(self, accept_s: float, grace_s: float) -> None:
        self.phase = DrainPhase.SERVING
        self.under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._accept_s = accept_s
        self._grace_s = grace_s

    @property
    def refusing(self) -> bool:
        """Whether new requests are turned away."""
        return self.phase is DrainPhase.REFUSING

    @contextmanager
    def request(self) -> Iterator[None]:
        """One request is under way."""
        self.under_way += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.under_way -= 1
            if not self.under_way:
                self._idle.set()

    async def run(self, *, at_once: bool = False) -> None:
        """Go through the phases, ``at_once`` without the first; return when the process may end."""
        self.phase = DrainPhase.ACCEPTING
        accept_s = 0.0 if at_once else self._accept_s
        log.warning(
            "drain.started requests=%d accepting for %.0f s more; a second signal ends it at once", self.under_way, accept_s
        )
        await asyncio.sleep(accept_s)
        self.phase = DrainPhase.REFUSING
        log.warning("drain.refusing requests=%d grace=%.0f s", self.under_way, self._grace_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s):
                await self._idle.wait()
        if self.under_way:
            log.error("drain.cut_off requests=%d still under way after the grace time", self.under_way)
        else:
            log.warning("drain.finished")
