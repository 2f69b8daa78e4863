"""Answers of control requests are gone when they were read: none waits for the garbage collector."""

import gc
import weakref
from collections.abc import Iterator

import httpx
import pytest

from proxy.adapters.control_http import ControlHttp
from proxy.adapters.let_go import let_go
from proxy.ports.replicas import ReplicaUnreachableError
from tests.support.builders import FakeClock


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Server:
    """Answers, and knows which answers are still there."""

    def __init__(self, **headers: str) -> None:
        self.there: weakref.WeakSet[httpx.Response] = weakref.WeakSet()
        self.answered = 0
        self.transport = httpx.MockTransport(self._answer)
        self._headers = headers

    def _answer(self, _: httpx.Request) -> httpx.Response:
        response = httpx.Response(200, headers=self._headers, content=b"some text")
        self.there.add(response)
        self.answered += 1
        return response


@pytest.mark.usefixtures("uncollected")
async def test_an_answer_to_a_control_request_is_gone_when_it_was_read() -> None:
    server = Server()
    http = ControlHttp("http://r0", FakeClock(), headers={}, timeout_s=5.0, transport=server.transport)
    for fresh in (False, True):
        assert (await http.get("/metrics", fresh=fresh)).body == b"some text"
    assert (server.answered, len(server.there)) == (2, 0)
    await http.aclose()


@pytest.mark.usefixtures("uncollected")
async def test_one_that_is_refused_is_gone_too() -> None:
    server = Server(**{"content-encoding": "x-none"})
    http = ControlHttp("http://r0", FakeClock(), headers={}, timeout_s=5.0, transport=server.transport)
    with pytest.raises(ReplicaUnreachableError, match="compressed"):
        await http.get("/metrics")
    assert (server.answered, len(server.there)) == (1, 0)
    await http.aclose()


@pytest.mark.usefixtures("uncollected")
async def test_what_is_not_let_go_of_stays() -> None:
    server = Server()
    async with httpx.AsyncClient(transport=server.transport) as client:
        async with client.stream("GET", "http://r0/") as response:
            await response.aread()
        del response
        assert len(server.there) == 1, "httpx ties no knot any more: proxy.adapters.let_go can go"
        async with let_go(client.stream("GET", "http://r0/")) as response:
            assert await response.aread() == b"some text"
        del response
        assert len(server.there) == 1
