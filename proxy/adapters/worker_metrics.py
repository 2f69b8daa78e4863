"""The metrics of the other workers of this ``kvgate serve``, asked of each at its own admin port."""

import asyncio
import logging
from collections.abc import Mapping

import httpx

PATIENCE_S = 2.0  # a worker that is being started anew has its port, and nobody to answer there; Prometheus waits ten seconds

log = logging.getLogger("kvgate.workers")


class WorkerMetrics:
    """``ports.WorkerTexts`` over HTTP. ``urls`` are those of all admin ports by the worker's number, ``own`` is ours."""

    def __init__(self, urls: Mapping[int, str], own: int, control: httpx.AsyncClient) -> None:
        self.own = own
        self._urls = urls
        self._control = control

    async def others(self) -> dict[int, bytes | None]:
        """Text by number, None of one that did not answer."""
        numbers = [number for number in self._urls if number != self.own]
        return dict(zip(numbers, await asyncio.gather(*map(self._ask, numbers)), strict=True))

    async def _ask(self, number: int) -> bytes | None:
        try:
            answer = await self._control.get(f"{self._urls[number]}/metrics", timeout=PATIENCE_S)
        except httpx.HTTPError as error:
            log.warning("worker.silent worker=%d error=%r: its metrics are missing", number, error)
            return None
        return answer.content if answer.status_code == 200 else None
