"""Requests that hang do not keep later ones from being sent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from proxy.adapters.clock import SystemClock
from proxy.adapters.control_http import ControlHttp
from proxy.ports.replicas import ReplicaUnreachableError

HANGING = 12


async def test_requests_that_hang_take_no_connection_from_those_that_follow() -> None:
    """As many as that were once enough for a replica to stay unreachable."""
    hung, accepted = asyncio.Event(), 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"/hangs" in head:
                accepted += 1
                if accepted == HANGING:
                    hung.set()
                await reader.read()
            else:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    http = ControlHttp(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", SystemClock(), headers={}, timeout_s=30.0)
    hanging = [asyncio.create_task(http.get("/hangs", fresh=index % 2 == 0)) for index in range(HANGING)]
    try:
        async with asyncio.timeout(10):
            await hung.wait()
            assert (await http.get("/x")).body == b"ok"
            assert (await http.get("/x", fresh=True)).body == b"ok"
    finally:
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        await http.aclose()
        server.close()


class Counted:
    """A server that answers ``head``, and counts its connections; ``closes``: each after its first answer, without having said so."""

    def __init__(self, head: bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", *, closes: bool = False) -> None:
        self.connections = 0
        self._head, self._closes = head, closes
        self._served: list[asyncio.Task[None] | None] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._served.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(self._head)
                if self._closes:
                    break
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    @asynccontextmanager
    async def asked(self, timeout_s: float = 30.0) -> AsyncIterator[tuple[ControlHttp, asyncio.Server]]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        http = ControlHttp(url, SystemClock(), headers={"x-key": "1"}, timeout_s=timeout_s)
        yield http, server
        await http.aclose()
        server.close()
        await asyncio.gather(*(one for one in self._served if one is not None))


async def test_what_is_asked_again_and_again_goes_over_one_connection_and_what_is_to_be_fresh_does_not() -> None:
    counted = Counted()
    async with counted.asked() as (http, _):
        for _ in range(3):
            assert (await http.get("/metrics")).body == b"ok"
        assert counted.connections == 1
        assert (await http.get("/metrics", fresh=True)).status == 200
        assert counted.connections == 2


async def test_a_connection_that_was_closed_meanwhile_says_nothing_about_the_replica() -> None:
    async with Counted(closes=True).asked() as (http, _):
        for _ in range(3):
            assert (await http.get("/metrics")).body == b"ok"


async def test_who_takes_a_connection_and_does_not_answer_is_late_and_who_is_not_there_is_not() -> None:
    async with Counted(b"").asked(timeout_s=0.2) as (http, server):
        with pytest.raises(ReplicaUnreachableError, match=r"no complete answer within 0\.2 s") as late:
            await http.get("/metrics")
        assert late.value.late
        server.close()
        http.bound(30.0)
        with pytest.raises(ReplicaUnreachableError, match="vLLM is running there") as gone:
            await http.get("/metrics")
        assert not gone.value.late


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nok", "compressed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\n" + bytes(9_000_000), "exceeds 8,000,000 bytes"),
        (b"HTTP/1.1 900000 OK\r\n\r\n", "running there"),
    ],
)
async def test_odd_answers_are_told(head: bytes, told: str) -> None:
    async with Counted(head).asked() as (http, _):
        with pytest.raises(ReplicaUnreachableError, match=told):
            await http.get("/metrics")
