"""The engines' own word while proxies share them: what they hold, how many wait inside, and how often they preempted."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from tests.bench.engine import EngineState, scrape

PERIOD_S = 0.2
WAITING_BLOCKS = 12.0  # of a request that waits inside: at least its prompt, which is of 20 to 120 words


@dataclass(slots=True)
class EngineWatch:
    """Scrapes replicas until cancelled. ``held_ratio_max`` is the most of its usable blocks that one held, ``wanted_ratio_max`` with
    what waits inside it as well: above 1 more was sent there than fits.
    """

    urls: Sequence[str]
    looks: int = 0
    held_ratio_max: float = 0.0
    wanted_ratio_max: float = 0.0
    held_ratio_sum: float = 0.0
    waiting_max: int = 0
    last: list[EngineState] = field(default_factory=list)

    async def run(self) -> None:
        """Look every ``PERIOD_S``."""
        async with httpx.AsyncClient() as client:
            while True:
                await self.look(client)
                await asyncio.sleep(PERIOD_S)

    async def look(self, client: httpx.AsyncClient) -> list[EngineState]:
        """One look at all of them."""
        self.last = await asyncio.gather(*(scrape(client, url) for url in self.urls))
        self.looks += 1
        for state in self.last:
            self.held_ratio_max = max(self.held_ratio_max, state.used_blocks / state.usable_blocks)
            wanted = state.used_blocks + state.waiting * WAITING_BLOCKS
            self.wanted_ratio_max = max(self.wanted_ratio_max, wanted / state.usable_blocks)
            self.held_ratio_sum += state.used_blocks / state.usable_blocks / len(self.last)
            self.waiting_max = max(self.waiting_max, state.waiting)
        return self.last

    async def preemptions(self) -> int:
        """So far, over all replicas."""
        async with httpx.AsyncClient() as client:
            return sum(state.preemptions for state in await asyncio.gather(*(scrape(client, url) for url in self.urls)))

    @property
    def held_ratio_mean(self) -> float:
        """Share of the usable blocks in use, over all looks."""
        return self.held_ratio_sum / max(1, self.looks)
