"""The metrics as an answer, made between other work, so that a scrape of many replicas holds up no stream.

Of several workers each tells its own at its admin port. At the port that they share, where nobody knows which of them answers, and at
``/metrics/workers`` whoever is asked tells those of all, by asking the others.
"""

import asyncio
from collections.abc import Iterable

from proxy.ports import Clock, Telemetry, WorkerTexts
from proxy.wire.answers import Answer
from proxy.wire.merged_exposition import merged

TURN_S = 0.001  # for so long it is worked on at a time


async def exposition(telemetry: Telemetry, clock: Clock, workers: WorkerTexts | None = None) -> Answer:
    """Everything measured here, and by the other ``workers`` where they are named."""
    others = {} if workers is None else await workers.others()
    body = await _between_others(telemetry.exposition_parts(), clock)
    if workers is not None:
        texts = dict(sorted({**others, workers.own: body}.items()))
        body = await _between_others(merged(texts), clock)
    return Answer(200, ((b"content-type", telemetry.content_type), (b"content-length", b"%d" % len(body))), body)


async def _between_others(parts: Iterable[bytes], clock: Clock) -> bytes:
    made: list[bytes] = []
    begun_s = clock.now_s()
    for part in parts:
        made.append(part)
        if clock.now_s() - begun_s >= TURN_S:
            await asyncio.sleep(0)
            begun_s = clock.now_s()
    return b"".join(made)
