"""Metrics are written between other work: whoever streams meanwhile has turns, however much there is to tell."""

import asyncio
from collections.abc import Iterator
from typing import Any

from proxy.serving.exposition import TURN_S, exposition
from tests.support.builders import FakeClock

PARTS = 50


class Telling:
    """Telemetry of which every part takes as long as a test says."""

    content_type = b"text/plain"

    def __init__(self, clock: FakeClock, part_s: float) -> None:
        self._clock = clock
        self._part_s = part_s
        self.told = 0

    def exposition_parts(self) -> Iterator[bytes]:
        for index in range(PARTS):
            self._clock.advance(self._part_s)
            self.told += 1
            yield b"part %d\n" % index


async def turns_meanwhile(part_s: float) -> tuple[int, bytes]:
    """Return at how many points of an exposition another task had its turn, and the body."""
    clock = FakeClock()
    telling: Any = Telling(clock, part_s)
    seen: set[int] = set()

    async def other() -> None:
        while telling.told < PARTS:
            seen.add(telling.told)
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    answer = await exposition(telling, clock)
    await task
    return len(seen - {0}), answer.body


async def test_others_have_a_turn_after_every_part_that_takes_long() -> None:
    turns, body = await turns_meanwhile(TURN_S)
    assert turns == PARTS - 1  # after the last there is nothing left to wait for
    assert body.count(b"\n") == PARTS


async def test_short_parts_are_made_together() -> None:
    turns, body = await turns_meanwhile(TURN_S / 9.5)
    assert turns == PARTS // 10 - 1
    assert body.startswith(b"part 0\npart 1\n")
