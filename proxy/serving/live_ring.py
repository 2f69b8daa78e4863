"""The last minutes, look by look: what the live page draws, kept here so that a page that is loaded anew shows them too.

A look every ``EVERY_S`` seconds notes what every replica measures, is estimated to hold, and is forecast to come to, and how many wait
and were let in. It goes over ``SLICE`` replicas at a time and lets others run between (64 replicas of 14 requests each: 4 ms in all).
Looks are kept as the JSON they are sent as, ``LOOKS_MAX`` of them: of 64 replicas about 600 kB.
"""

import asyncio
from collections import deque
from math import isfinite

import msgspec

from proxy.core.book import Book
from proxy.core.gate import Gate
from proxy.ports import Clock
from proxy.wire.live_report import Row, Sample

EVERY_S = 1.0
LOOKS_MAX = 300
SLICE = 4  # about a millisecond, whatever they hold
UNKNOWN: Row = (None, None, None, None, None)

_encode = msgspec.json.Encoder().encode


class LiveRing:
    """One process's looks."""

    def __init__(self, gate: Gate, clock: Clock) -> None:
        self._gate = gate
        self._clock = clock
        self._looks: deque[tuple[int, msgspec.Raw]] = deque(maxlen=LOOKS_MAX)
        self._seq = 0
        self.begun_s = clock.now_s()
        self.rows: dict[str, Row] = {}  # of the last look
        self.unplaced: dict[str, int] = {}

    def __repr__(self) -> str:
        """State for people and tests."""
        return f"<LiveRing looks={len(self._looks)} last={self._seq}>"

    def after(self, seq: int) -> list[msgspec.Raw]:
        """Looks of a higher number; all of them where that number was never given, as after a restart."""
        if seq > self._seq:
            seq = 0
        return [raw for number, raw in self._looks if number > seq]

    async def look(self) -> None:
        """Note what is, a few replicas at a time."""
        rows: dict[str, Row] = {}
        unplaced: dict[str, int] = {}
        for index, (name, book) in enumerate(list(self._gate.fleet.books.items())):
            if index % SLICE == 0 and index:
                await asyncio.sleep(0)
            rows[name], unplaced[name] = self._row(book)
        self.rows, self.unplaced = rows, unplaced
        self._seq += 1
        gate = self._gate
        counters = gate.counters
        sample = Sample(
            self._seq, self._clock.wall_s(), len(gate.queue), gate.open_requests, counters.admitted, counters.held, counters.shed, rows
        )  # fmt: skip
        self._looks.append((self._seq, msgspec.Raw(_encode(sample))))

    def _row(self, book: Book) -> tuple[Row, int]:
        if not book.spec.enforced:
            return UNKNOWN, 0
        now_s = self._clock.now_s()
        low, high = book.ledger.held_interval(book.clock.steps, 0.0)
        outlook, capacity = book.outlook(now_s), book.spec.usable_blocks
        budget = max(0.0, capacity - outlook.margin_blocks - outlook.bias_blocks)
        row = _whole(book.measured_blocks), _whole(low), _whole(outlook.peak_blocks), _whole(budget), capacity
        return row, round(high - low)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY_S)


def _whole(blocks: float | None) -> int | None:
    return None if blocks is None or not isfinite(blocks) else round(blocks)
