"""Requests that ended, until everybody who keeps account of them was told: many at a time.

Metrics, log line, minutes and the kept decision take 28 us for one request that comes alone and 10 for each of thirty in a row, since
by then their code is in the processor's caches. So some are waited for, and when the next request begins they are told of once that is at
its engine: not while it waits for us. Whoever reads any of it calls ``tell`` before.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from proxy.ports.record import RequestRecord

TOGETHER = 4  # less than an engine takes to answer
TOGETHER_MAX = 32  # a millisecond's work at the most holds up a stream
TOGETHER_S = 0.1  # nobody minds that a line or a count comes so much later; at 50 requests/s five go together


class Ended:
    """One process's. ``told`` is called once for each request, in the order of their ends."""

    __slots__ = ("_records", "_timer", "_told")

    def __init__(self, told: Callable[[RequestRecord], None]) -> None:
        self._told = told
        self._records: deque[RequestRecord] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        """How many, for people and tests."""
        return f"<Ended untold={len(self._records)}>"

    def add(self, record: RequestRecord) -> None:
        """A request ended."""
        self._records.append(record)
        if len(self._records) >= TOGETHER_MAX:
            self.tell()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TOGETHER_S, self._due)

    def begun(self) -> None:
        """A request begins: tell of those that ended as soon as it waits for something."""
        if len(self._records) >= TOGETHER:
            asyncio.get_running_loop().call_soon(self.tell)

    def tell(self) -> None:
        """Tell of all that ended until now."""
        while self._records:
            self._told(self._records.popleft())

    def _due(self) -> None:
        self._timer = None
        try:
            self.tell()
        finally:
            if self._records:  # one that cannot be told takes none of the others with it
                self._timer = asyncio.get_running_loop().call_later(TOGETHER_S, self._due)
