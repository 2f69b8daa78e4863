"""The shorter way to the client: written at once where that is safe, and its leaving is told once, to whoever still wants to know."""

import asyncio
from typing import Any

import pytest

from proxy.adapters.client_link import ClientLink


class Transport:
    def __init__(self) -> None:
        self.written = b""
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing


class Flow:
    write_paused = False
    resumed = 0

    def resume_reading(self) -> None:
        self.resumed += 1


class Cycle:
    disconnected = response_complete = False
    chunked_encoding: bool | None = True


class Client:
    def __init__(self) -> None:
        self.transport, self.flow, self.cycle = Transport(), Flow(), Cycle()
        parts: Any = self.transport, self.flow
        self.link = ClientLink(asyncio.get_running_loop(), *parts)
        cycle: Any = self.cycle
        self.link.cycle = cycle
        self.told = 0

    def left(self) -> None:
        self.told += 1


@pytest.fixture
async def client() -> Client:
    return Client()


async def test_a_piece_is_a_chunk_on_the_wire(client: Client) -> None:
    assert client.link.write_now(b"x" * 17)
    assert client.transport.written == b"11\r\n" + b"x" * 17 + b"\r\n"


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("flow", "write_paused", True),  # it would only lie here
        ("cycle", "disconnected", True),
        ("cycle", "response_complete", True),
        ("cycle", "chunked_encoding", False),  # its length was told, and is to be kept account of
        ("cycle", "chunked_encoding", None),  # its head is not out
        ("link", "cycle", None),
    ],
)
async def test_nothing_is_written_where_send_must_judge(client: Client, part: str, name: str, value: object) -> None:
    setattr(getattr(client, part), name, value)
    assert not client.link.write_now(b"x")
    assert client.transport.written == b""


async def test_the_leaving_is_told_once(client: Client) -> None:
    client.link.on_leave(client.left)
    assert client.flow.resumed == 1  # a paused reader would never see it
    client.link.lost()
    client.link.lost()
    assert client.told == 1


async def test_who_forgot_is_not_told(client: Client) -> None:
    client.link.on_leave(client.left)
    client.link.forget(client.left)
    client.link.lost()
    assert client.told == 0


async def test_the_next_request_is_not_forgotten_with_the_last(client: Client) -> None:
    earlier = Client()
    client.link.on_leave(client.left)
    client.link.forget(earlier.left)
    client.link.lost()
    assert client.told == 1


async def test_who_asks_after_it_is_told_soon(client: Client) -> None:
    client.transport.closing = True
    client.link.on_leave(client.left)
    assert client.told == 0  # not inside the call: the caller is not ready for it
    await asyncio.sleep(0)
    assert client.told == 1
