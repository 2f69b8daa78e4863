"""Control requests that were cancelled leave no connection behind: their client is closed before the next, if nobody uses it."""

import asyncio

import httpx
import pytest

from proxy.adapters.probe import ControlHttp
from proxy.ports.replicas import ReplicaUnreachableError
from tests.support.builders import FakeClock


class Server(httpx.AsyncBaseTransport):
    """Answers what is not on ``/silent``; that when it is told to. Counts how often a client closed it."""

    def __init__(self) -> None:
        self.closed = 0
        self.speaks = asyncio.Event()
        self.asked = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/silent":
            self.asked.set()
            await self.speaks.wait()
        return httpx.Response(200, content=b"text")

    async def aclose(self) -> None:
        self.closed += 1


def control(server: Server, timeout_s: float) -> ControlHttp:
    return ControlHttp("http://r0", FakeClock(), headers={}, timeout_s=timeout_s, transport=server)


async def test_what_a_time_out_cancelled_is_closed_before_the_next_request() -> None:
    server = Server()
    http = control(server, 0.01)
    with pytest.raises(ReplicaUnreachableError, match="no complete answer") as caught:
        await http.get("/silent")
    assert caught.value.late
    http.timeout_s = 60.0
    assert server.closed == 0
    for _ in range(2):
        assert (await http.get("/metrics")).body == b"text"
        assert server.closed == 1, "once"
    await http.aclose()
    assert server.closed == 2


async def test_a_request_that_is_cancelled_from_outside_counts_too() -> None:
    server = Server()
    http = control(server, 60.0)
    asking = asyncio.create_task(http.get("/silent", fresh=True))
    await server.asked.wait()
    asking.cancel()
    await asyncio.wait([asking])
    await http.get("/metrics", fresh=True)
    assert server.closed == 1
    await http.aclose()


async def test_nothing_is_closed_while_another_request_is_under_way() -> None:
    server = Server()
    http = control(server, 60.0)
    asking = asyncio.create_task(http.get("/silent"))
    await server.asked.wait()
    http.timeout_s = 0.01
    with pytest.raises(ReplicaUnreachableError):
        await http.get("/silent", fresh=True)
    http.timeout_s = 60.0
    await http.get("/metrics")
    assert server.closed == 0
    server.speaks.set()
    assert (await asking).body == b"text"
    await http.get("/metrics")
    assert server.closed == 1
    await http.aclose()
