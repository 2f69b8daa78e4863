"""What becomes of a connection whose application returns, whole or not."""

import logging
from typing import Any

import pytest

from proxy.adapters.cycle import Cycle
from proxy.adapters.flow import Flag, Flow


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written, self.closed = b"", False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True


class Server:
    """A cycle, and how often its connection was told that the answer is whole."""

    def __init__(self) -> None:
        self.transport, self.whole = Transport(), 0
        transport: Any = self.transport
        flag: Any = Flag()
        log = logging.getLogger("test")
        scope: Any = {"method": "POST"}
        self.cycle = Cycle(
            scope, transport, Flow(transport), log, log, access_log=False, default_headers=[], message_event=flag,
            expect_100_continue=False, keep_alive=True, on_response=self.told,
        )  # fmt: skip

    def told(self) -> None:
        self.whole += 1


async def begin(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"a", "more_body": True})


async def finish(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.body", "body": b"b", "more_body": False})


async def nothing(*_: Any) -> None:
    pass


async def fail(*_: Any) -> None:
    raise ValueError("a fault of ours")


async def test_an_answer_that_flows_on_is_left_alone_and_ended_by_the_next() -> None:
    server = Server()
    server.cycle.flows_on = True
    await server.cycle.run_asgi(begin)
    assert not server.transport.closed
    server.cycle.flows_on = False
    await server.cycle.run_asgi(finish)
    assert server.transport.written.endswith(b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
    assert (server.transport.closed, server.whole) == (False, 1)


@pytest.mark.parametrize("rest", [nothing, fail])
async def test_an_answer_whose_end_fails_is_cut_off(rest: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A client must not take the part for the whole."""
    server = Server()
    server.cycle.flows_on = True
    await server.cycle.run_asgi(begin)
    server.cycle.flows_on = False
    await server.cycle.run_asgi(rest)
    assert server.transport.closed
    assert not server.transport.written.endswith(b"0\r\n\r\n")
    assert len([one for one in caplog.records if one.name == "test"]) == 1  # others may tell what an earlier test left untold


async def test_an_application_that_fails_does_not_flow_on(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.cycle.flows_on = True
    await server.cycle.run_asgi(fail)
    assert server.transport.written.startswith(b"HTTP/1.1 500 ")
    assert server.transport.closed
    assert caplog.records


async def test_an_application_that_says_nothing_is_a_fault_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    await server.cycle.run_asgi(nothing)
    assert server.transport.written.startswith(b"HTTP/1.1 500 ")
    assert caplog.records


async def test_nobody_is_told_anything_who_has_left() -> None:
    server = Server()
    server.cycle.disconnected = True
    await server.cycle.run_asgi(nothing)
    assert not server.transport.written
