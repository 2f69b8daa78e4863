"""Both ends of ``streams``: an engine that holds its streams until it is told to end them, and clients that ask once and stay."""

import asyncio
import random
import socket
from collections.abc import Callable
from functools import partial

import uvloop

from tests.bench.relay_load import CHUNK, LAST, METRICS, MODELS, Client, Engine, Seen, percentile_ms, whole

BLOCKS = 4_000_001  # room for ten thousand prompts of 2 KB and what they ask for
HELD_MS = 3_600_000  # between the first event and the next: the engine's "release" comes before
AT_ONCE = 50  # streams being opened
FIRST_S_MAX = 300.0
RUNNING = b'vllm:num_requests_running{engine="0",model_name="m"} '
USAGE = b'vllm:kv_cache_usage_perc{engine="0",model_name="m"} '
BLOCKS_EACH = 30


class HoldingEngine(Engine):
    """After its first event a stream is silent until somebody gets ``/release``; its gauges tell of them."""

    held: "set[HoldingEngine]" = set()  # noqa: RUF012 - of the process, which serves one engine

    def data_received(self, data: bytes) -> None:
        """The transport's side."""
        running = len(self.held)
        told = METRICS % BLOCKS
        told = told.replace(RUNNING + b"0.0", RUNNING + b"%d" % running)
        told = told.replace(USAGE + b"0.0", USAGE + b"%f" % (running * BLOCKS_EACH / BLOCKS))
        self._get = {b"/v1/models": whole(MODELS), b"/metrics": whole(told, b"text/plain; version=0.0.4")}
        if data.startswith(b"GET /release"):
            for one in list(self.held):
                one.release()
        super().data_received(data)

    def _emit(self) -> None:
        if self._period_s < HELD_MS / 1e3:
            super()._emit()
            return
        self._transport.write(CHUNK)
        self.held.add(self)

    def release(self) -> None:
        """End the stream."""
        self.held.discard(self)
        self._transport.write(CHUNK + LAST)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - a protocol's signature
        """The transport's side."""
        self.held.discard(self)


def run_holding_engine(listener: socket.socket) -> None:
    """Serve until killed."""

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: HoldingEngine(BLOCKS), sock=listener)
        await server.serve_forever()

    uvloop.run(main())


class OneRequest(Client):
    """Sends a single request and stays."""

    _asked = False

    def _next(self) -> None:
        if not self._asked:
            self._asked = True
            self._send()


class Opening:
    """Streams that are open, and those that ask beside them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._chance = random.Random(1)
        self.seen = Seen()
        self.links: list[asyncio.Transport] = []

    async def _link(self, seen: Seen, period_ms: int) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(
            lambda: OneRequest(period_ms, seen, None, self._chance), "127.0.0.1", self._port
        )
        return transport

    async def open(self, streams: int) -> None:
        """Have so many open, each with its first event. Raises TimeoutError."""
        while len(self.links) < streams:
            more = min(AT_ONCE, streams - len(self.links))
            self.links += await asyncio.gather(*(self._link(self.seen, HELD_MS) for _ in range(more)))
            await until(lambda: len(self.seen.first_s) >= len(self.links), 0.001)

    async def probe(self, period_ms: int, requests: int) -> dict[str, float]:
        """One at a time: milliseconds to the first byte of the body."""
        seen = Seen()
        for number in range(requests):
            transport = await self._link(seen, period_ms)
            await until(partial(_firsts, seen, number + 1), 0.0005)
            seen.over = True
            transport.abort()
        self.seen.failed += seen.failed
        return {
            "p50": percentile_ms(seen.first_s, 0.5),
            "p99": percentile_ms(seen.first_s, 0.99),
            "max": percentile_ms(seen.first_s, 1.0),
        }


def _firsts(seen: Seen, number: int) -> bool:
    return len(seen.first_s) >= number


async def until(reached: Callable[[], bool], period_s: float) -> None:
    """Ask again and again, as the protocols tell nobody. Raises TimeoutError after ``FIRST_S_MAX``."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + FIRST_S_MAX
    while not reached():
        if loop.time() > give_up_s:
            raise TimeoutError("what was waited for did not come")
        await asyncio.sleep(period_s)
