"""Load at 80 % of what four mock replicas can do, while they are killed, paused, reset, slowed and made to answer garbage or 500.

    python -m tests.bench.chaos --minutes 10

At most two replicas are bad at a time, one of them in a way that the other is not. Every answer is compared with what a mock says when it
is asked directly (``tests.bench.chaos_verdict``); afterwards kvgate's ledger and the replicas' gauges must be at 0, and all replicas in
use. It starts all processes itself. The exit status is 1 when the verdict has a fault.

The load is 80 % of what all four do while they are well, found in a closed loop before. Faults take capacity away, so of what is left it is
more, at times more than there is; the verdict tells how much more, and refusals beyond that are a fault.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvloop

from proxy.adapters.upstream import HttpUpstream, UpstreamLimits
from proxy.adapters.upstream_bounds import Patience
from proxy.ports import UpstreamError
from tests.bench.chaos_network import Way
from tests.bench.chaos_stage import REPLICAS, Stage
from tests.bench.chaos_verdict import Reply, Verdict
from tests.bench.left_over import left_over
from tests.bench.loads import distinct_words

KINDS = 40  # of requests, each with its one right answer
OUTPUT_TOKENS = (10, 200)
CALIBRATION_S = 8.0
CALIBRATION_CLIENTS = 80
LOAD = 0.8
PATIENCE_S = 180.0  # of a client: longer than any pause and any queue
SETTLE_S = 120.0  # the longest ejection is a minute
USELESS = frozenset({"kill", "pause", "garbage", "errors"})  # a replica that is slow, or loses connections, still serves
HEADERS = [(b"content-type", b"application/json")]


@dataclass(frozen=True, slots=True)
class Kind:
    """One request and the answer that is right, the same from every mock."""

    body: bytes
    stream: bool
    text: str = ""


async def ask(upstream: HttpUpstream, url: str, kind: Kind) -> Reply:
    """Send one request and read all that comes."""
    try:
        response = await upstream.open(url, b"POST", b"/v1/chat/completions", HEADERS, kind.body)
    except UpstreamError as error:
        return Reply(kind.stream, error=str(error))
    parts: list[bytes] = []
    whole, why = True, ""
    try:
        while data := await response.read():
            parts.append(data)
    except UpstreamError as error:
        whole, why = False, str(error)
    finally:
        response.close()
    headers = {name.decode(): value.decode("latin-1") for name, value in response.headers}
    return Reply(kind.stream, response.status, headers, b"".join(parts), whole, why)


async def kinds_of(upstream: HttpUpstream, url: str, seed: int) -> list[Kind]:
    """The requests of a run, with what a mock answers to each when it is asked directly."""
    rng = random.Random(seed)
    asked: list[dict[str, Any]] = [
        {
            "model": "mock",
            "messages": [{"role": "user", "content": distinct_words(rng, rng.randint(10, 200))}],
            "max_tokens": rng.randint(*OUTPUT_TOKENS),
            "ignore_eos": True,
        }
        for _ in range(KINDS)
    ]
    replies = await asyncio.gather(*(ask(upstream, url, Kind(json.dumps(fields).encode(), stream=False)) for fields in asked))
    texts = [json.loads(reply.body)["choices"][0]["message"]["content"] for reply in replies]
    streams = [{"stream": index % 2 == 0} for index in range(KINDS)]
    return [
        Kind(json.dumps(fields | stream).encode(), stream["stream"], text)
        for fields, stream, text in zip(asked, streams, texts, strict=True)
    ]


async def requests_per_s(upstream: HttpUpstream, url: str, kinds: list[Kind]) -> float:
    """What the replicas can do when all is well: a closed loop for a moment."""
    loop = asyncio.get_running_loop()
    until_s, done = loop.time() + CALIBRATION_S, 0

    async def client(index: int) -> None:
        nonlocal done
        while loop.time() < until_s:
            reply = await ask(upstream, url, kinds[index % KINDS])
            index += 7
            done += reply.status == 200 and loop.time() < until_s

    await asyncio.gather(*(client(index) for index in range(CALIBRATION_CLIENTS)))
    return done / CALIBRATION_S


class Chaos:
    """Makes faults, one after another, at most two replicas at a time."""

    def __init__(self, stage: Stage, verdict: Verdict, seed: int) -> None:
        self._stage = stage
        self._verdict = verdict
        self._rng = random.Random(seed)
        self._bad: set[int] = set()
        self._ways: deque[Callable[[int], Awaitable[None]]] = deque()

    async def run(self, until_s: float) -> None:
        """Go on until then, and mend everything."""
        loop = asyncio.get_running_loop()
        making: set[asyncio.Task[None]] = set()
        while loop.time() < until_s:
            if len(self._bad) < 2:
                index = self._rng.choice([one for one in range(REPLICAS) if one not in self._bad])
                self._bad.add(index)
                task = asyncio.create_task(self._one(index))
                making.add(task)
                task.add_done_callback(making.discard)
            await asyncio.sleep(self._rng.uniform(0.5, 4.0))
        await asyncio.gather(*making)

    async def _one(self, index: int) -> None:
        if not self._ways:  # each as often as the others
            ways = [self._kill, self._pause, self._reset, self._slow, self._garbage, self._errors]
            self._rng.shuffle(ways)
            self._ways.extend(ways)
        way = self._ways.popleft()
        name, loop = way.__name__.removeprefix("_"), asyncio.get_running_loop()
        self._verdict.done[name] += 1
        since_s = loop.time()
        try:
            await way(index)
        finally:
            self._bad.discard(index)
            if name in USELESS:
                self._verdict.lost_replica_s += loop.time() - since_s

    async def _kill(self, index: int) -> None:
        mock = self._stage.mocks[index]
        mock.kill()
        await asyncio.sleep(self._rng.uniform(0.0, 5.0))
        mock.start()
        await mock.until(f"http://127.0.0.1:{self._stage.ports[index]}/health")

    async def _pause(self, index: int) -> None:
        mock = self._stage.mocks[index]
        mock.stop()
        await asyncio.sleep(self._rng.uniform(0.5, 15.0))
        mock.go_on()

    async def _reset(self, index: int) -> None:
        for _ in range(self._rng.randint(1, 4)):
            self._stage.wires[index].reset()
            await asyncio.sleep(self._rng.uniform(0.0, 1.0))

    async def _slow(self, index: int) -> None:
        await self._through(index, Way.SLOW, 10.0)

    async def _garbage(self, index: int) -> None:
        await self._through(index, Way.GARBAGE, 6.0)

    async def _errors(self, index: int) -> None:
        await self._through(index, Way.ERRORS, 6.0)

    async def _through(self, index: int, way: Way, seconds_max: float) -> None:
        wire = self._stage.wires[index]
        wire.way = way
        if way is not Way.SLOW:
            wire.reset()  # kept connections would not meet it
        await asyncio.sleep(self._rng.uniform(0.5, seconds_max))
        wire.way = Way.PASS


async def load(
    upstream: HttpUpstream, url: str, kinds: list[Kind], rate_per_s: float, until_s: float, verdict: Verdict, seed: int
) -> None:
    """A Poisson process of requests, whatever becomes of them; returns when the last has ended."""
    loop, rng = asyncio.get_running_loop(), random.Random(seed)
    start_s = due_s = loop.time()
    tasks: set[asyncio.Task[None]] = set()

    async def one(kind: Kind) -> None:
        sent_s = loop.time() - start_s
        verdict.note(await ask(upstream, url, kind), kind.text, sent_s)

    while due_s < until_s:
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        task = asyncio.create_task(one(rng.choice(kinds)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due_s += rng.expovariate(rate_per_s)
    await asyncio.gather(*tasks)


async def settle(stage: Stage, verdict: Verdict, since_s: float) -> None:
    """Wait until all replicas serve again and nothing is left; note what is."""
    loop = asyncio.get_running_loop()
    engines = [f"http://127.0.0.1:{port}" for port in stage.ports]
    async with httpx.AsyncClient(timeout=10.0) as client:
        while True:
            verdict.phases, verdict.left = await left_over(client, stage.admin, engines)
            serving = all(phase == "serving" for phase in verdict.phases.values())
            if serving and verdict.recovered_s is None:
                verdict.recovered_s = loop.time() - since_s
            if (serving and not any(verdict.left.values())) or loop.time() - since_s > SETTLE_S:
                return
            await asyncio.sleep(0.5)


async def run_chaos(folder: Path, *, seconds: float, seed: int, speed: float) -> Verdict:
    """Everything, and its verdict."""
    verdict, loop = Verdict(), asyncio.get_running_loop()
    upstream = HttpUpstream(UpstreamLimits(connect_s_max=30.0, patience=Patience(PATIENCE_S, PATIENCE_S)))
    async with Stage(folder, speed) as stage:
        try:
            kinds = await kinds_of(upstream, f"http://127.0.0.1:{stage.ports[0]}", seed)
            rate_per_s = LOAD * await requests_per_s(upstream, stage.url, kinds)
            verdict.load, verdict.replica_s = LOAD, REPLICAS * seconds
            until_s = loop.time() + seconds
            chaos = Chaos(stage, verdict, seed).run(until_s - min(20.0, seconds / 4))
            mended = asyncio.create_task(_timed(chaos))
            await load(upstream, stage.url, kinds, rate_per_s, until_s, verdict, seed)
            await settle(stage, verdict, await mended)
        finally:
            await upstream.aclose()
    return verdict


async def _timed(work: Awaitable[None]) -> float:
    await work
    return asyncio.get_running_loop().time()


def main(argv: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of requests and faults (default: %(default)s)")
    parser.add_argument("--speed", type=float, default=0.5, help="of the mocks, 1 a GPU's (default: %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the logs there")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        kept = options.keep or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        verdict = uvloop.run(run_chaos(kept, seconds=options.minutes * 60, seed=options.seed, speed=options.speed))
    sys.stdout.write("\n".join(verdict.lines()) + "\n")
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
