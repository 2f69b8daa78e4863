"""Ending a process without failing a request.

On SIGTERM ``/ready`` turns 503 at once; for ``drain_accept_s`` requests are still accepted, because load balancers take some seconds to
see that; then new ones are refused with ``draining``; what waits or runs finishes within ``grace_s``. What then still does is cut off,
which clients are told: whoever waits is refused, a stream ends with an error event. Then the process ends.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import StrEnum

from proxy.core.outcome import Outcome, Refusal

CUT_OFF_S = 1.0  # until the last words are written: they are short, and who does not read them is not waited for

log = logging.getLogger("kvgate.drain")


class DrainPhase(StrEnum):
    """Where the process is in its end."""

    SERVING = "serving"
    ACCEPTING = "accepting"  # unready, still taking requests
    REFUSING = "refusing"


def draining() -> Refusal:
    """The answer to who comes, or still waits, when no more is taken."""
    message = "This proxy is shutting down."
    return Refusal(Outcome.DRAINING, gate="drain", message=message, policy_key="relay.drain_accept", retry_after_s=1.0)


class Drain:
    """Holds the phase and counts requests under way."""

    def __init__(self, accept_s: float, grace_s: float, cut_off: Callable[[], Awaitable[None]]) -> None:
        """``cut_off`` ends what is still under way after the grace time, soon."""
        self.phase = DrainPhase.SERVING
        self.under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._accept_s = accept_s
        self._grace_s = grace_s
        self._cut_off = cut_off

    def bound(self, accept_s: float, grace_s: float) -> None:
        """The policy says otherwise from now on; a phase under way ends as it began."""
        self._accept_s, self._grace_s = accept_s, grace_s

    @property
    def refusing(self) -> bool:
        """Whether new requests are turned away."""
        return self.phase is DrainPhase.REFUSING

    def request(self) -> "Drain":
        """One request is under way inside ``with``."""
        return self

    def begun(self) -> None:
        """One more request is under way, up to its ``ended``."""
        self.under_way += 1
        self._idle.clear()

    def ended(self) -> None:
        """One has ended."""
        self.under_way -= 1
        if not self.under_way:
            self._idle.set()

    def __enter__(self) -> None:
        self.begun()

    def __exit__(self, *_: object) -> None:
        self.ended()

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
            with suppress(TimeoutError):
                async with asyncio.timeout(CUT_OFF_S):
                    await self._cut_off()
                    await self._idle.wait()
        else:
            log.warning("drain.finished")
