"""The feed's bounds, and the connections it opens over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest

from proxy.adapters import scraper
from proxy.adapters.clock import SystemClock
from proxy.adapters.scraper import FRESH_EVERY, VllmFeed
from proxy.ports.replicas import ReplicaUnreachableError
from tests.unit.adapters.fake_vllm import FakeVllm, SteppingClock, recorded
from tests.unit.adapters.feeding import feed_of


@dataclass
class Endless(httpx.AsyncByteStream):
    sent: int = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.sent += 1
            yield b"x" * 1_000_000


async def test_a_scrape_is_bounded_in_size() -> None:
    body = Endless()
    fake = FakeVllm(b"", special={"/metrics": lambda _: httpx.Response(200, stream=body)})
    with pytest.raises(ReplicaUnreachableError, match="exceeds 8,000,000 bytes"):
        await feed_of(fake).sample()
    assert body.sent == 9


async def test_a_probe_that_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:  # noqa: ARG002
            await asyncio.Event().wait()
            raise AssertionError

    monkeypatch.setattr(scraper, "PROBE_TIMEOUTS", 0)
    feed = VllmFeed("r0", "http://replica:8000", SteppingClock(), headers={}, timeout_s=60.0, transport=Silent())
    with pytest.raises(ReplicaUnreachableError, match="probing took more than"):
        await feed.probe()


def test_the_system_clock_reads_both_clocks() -> None:
    clock = SystemClock()
    assert clock.now_s() <= clock.now_s()
    assert clock.wall_s() > 1.7e9


class CountingServer:
    """Serves the recorded exposition on every path over real sockets and counts the connections made to it."""

    def __init__(self, *, hang_up_after_answer: bool) -> None:
        self.connections = 0
        self.answers = 0
        self._hang_up = hang_up_after_answer
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        body = recorded("0.32.0")
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.answers += 1
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
                if self._hang_up:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()


async def test_only_every_eighth_scrape_opens_a_connection() -> None:
    server = CountingServer(hang_up_after_answer=False)
    async with server as url:
        feed = VllmFeed("r0", url, SystemClock(), headers={}, timeout_s=5.0)
        for _ in range(2 * FRESH_EVERY):
            await feed.sample()
        await feed.aclose()
    assert (server.answers, server.connections) == (2 * FRESH_EVERY, 3)


async def test_a_server_that_hangs_up_between_scrapes_is_no_failure() -> None:
    server = CountingServer(hang_up_after_answer=True)
    async with server as url:
        feed = VllmFeed("r0", url, SystemClock(), headers={}, timeout_s=5.0)
        for _ in range(5):
            assert (await feed.sample()).engines[0].running == 12
        await feed.aclose()
    assert server.answers == 5


async def test_nobody_listens() -> None:
    async with CountingServer(hang_up_after_answer=True) as url:
        pass
    feed = VllmFeed("r0", url, SystemClock(), headers={}, timeout_s=5.0)
    with pytest.raises(ReplicaUnreachableError, match="Check that vLLM is running there"):
        await feed.probe()
    await feed.aclose()
