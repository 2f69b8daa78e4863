"""When to look: every so often until the time is over."""

import asyncio
from collections.abc import AsyncIterator

from proxy.ports import Clock


async def every(period_s: float, total_s: float, clock: Clock) -> AsyncIterator[float]:
    """Yield seconds since the beginning, ``period_s`` apart and never late by more than one look; the last comes at ``total_s``."""
    begun_s = clock.now_s()
    due_s = 0.0
    while due_s < total_s:
        due_s = min(due_s + period_s, total_s)
        await asyncio.sleep(max(0.0, begun_s + due_s - clock.now_s()))
        yield clock.now_s() - begun_s
