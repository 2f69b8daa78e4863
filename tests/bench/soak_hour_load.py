"""The load of the long soak: streams and plain answers of two routes, leaving clients, and what is malformed in six ways.

Prompts come from a pool of ``TEXTS`` texts and tenants and lengths from a few, so that every bounded memory of what was seen is full soon:
afterwards only a leak grows.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from proxy.adapters.upstream import HttpUpstream
from tests.bench.load import Fate, LoadRequest, Record, send
from tests.bench.loads import as_request, chat, completion, distinct_words

CANCELLED, MALFORMED = 0.01, 0.01
LEAVE_S_MAX = 2.0  # some leave before the first byte, most amid the answer
TEXTS = 2000
PROMPT_WORDS = (10, 100)
OUTPUT_TOKENS = (8, 16, 32, 48, 64)
TENANTS = 20
MODEL = "mock"
RAW_S_MAX = 30.0
JSON = b"content-type: application/json\r\n"
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: kvgate\r\nconnection: close\r\n"


def _with_body(body: bytes, length: int | None = None) -> bytes:
    return CHAT + JSON + b"content-length: %d\r\n\r\n" % (len(body) if length is None else length) + body


def _asking(**fields: object) -> bytes:
    return _with_body(json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]} | fields).encode())


# What is sent, and the status that must come back; None: nothing, as the client ends amid its body.
WRONG: dict[str, tuple[bytes, int | None]] = {
    "no JSON": (_with_body(b'{"model": "mock", "messages": ['), 400),
    "messages of no list": (_asking(messages=5), 400),
    "an unknown model": (_asking(model="nobody"), 404),
    "more than the context": (_asking(messages=[{"role": "user", "content": "word " * 5000}]), 400),
    "no HTTP": (b"\x16\x03\x01 hello\r\n\r\n", 400),
    "half a body": (_with_body(b'{"model"', 100), None),
}


@dataclass(slots=True)
class Met:
    """What the load met. ``records`` are of well-formed requests, in the order of their ends."""

    records: list[Record] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)  # malformed ones sent, by kind
    surprises: Counter[str] = field(default_factory=Counter)  # those that were not answered as they must be


def requests(seed: int) -> Iterator[LoadRequest]:
    """Well-formed ones without end."""
    texts_rng, rng = random.Random(11), random.Random(seed)
    texts = [distinct_words(texts_rng, texts_rng.randint(*PROMPT_WORDS)) for _ in range(TEXTS)]
    while True:
        api = rng.choice((chat, chat, completion))
        asked = api(
            MODEL, rng.choice(texts), stream=rng.random() < 0.7, max_tokens=rng.choice(OUTPUT_TOKENS), ignore_eos=True,
            user=f"tenant-{rng.randrange(TENANTS)}",
        )  # fmt: skip
        leave_after_s = rng.uniform(0.0, LEAVE_S_MAX) if rng.random() < CANCELLED else None
        yield as_request(*asked, leave_after_s=leave_after_s)


async def send_wrong(url: str, kind: str, met: Met) -> None:
    """Send one that is malformed, over a connection of its own, and compare the status."""
    sent, expected = WRONG[kind]
    met.wrong[kind] += 1
    place = urlsplit(url)
    try:
        async with asyncio.timeout(RAW_S_MAX):
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            try:
                writer.write(sent)
                await writer.drain()
                status = None if expected is None else int((await reader.readline()).split()[1])
            finally:
                writer.close()
    except (OSError, TimeoutError, IndexError, ValueError) as fault:
        met.surprises[f"{kind}: {fault!r}"] += 1
        return
    if status != expected:
        met.surprises[f"{kind}: status {status}, not {expected}"] += 1


async def offer(
    upstream: HttpUpstream, url: str, rate_per_s: float, until_s: float, met: Met, *, malformed: float, seed: int
) -> None:
    """A Poisson process of requests, whatever becomes of them; returns when the last has ended."""
    loop, rng, asked = asyncio.get_running_loop(), random.Random(seed), requests(seed)
    due_s = loop.time()
    tasks: set[asyncio.Task[None]] = set()

    async def one() -> None:
        if rng.random() < malformed:
            await send_wrong(url, rng.choice(list(WRONG)), met)
        else:
            met.records.append(await send(upstream, url, next(asked)))

    while due_s < until_s:
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        task = asyncio.create_task(one())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due_s += rng.expovariate(rate_per_s)
    await asyncio.gather(*tasks)


async def requests_per_s(upstream: HttpUpstream, url: str, clients: int, seconds: float) -> float:
    """What the replicas can do: a closed loop for that long."""
    loop, asked, done = asyncio.get_running_loop(), requests(0), 0
    until_s = loop.time() + seconds

    async def client() -> None:
        nonlocal done
        while loop.time() < until_s:
            record = await send(upstream, url, next(asked))
            done += record.fate is Fate.COMPLETED and record.end_s < until_s

    await asyncio.gather(*(client() for _ in range(clients)))
    return done / seconds
