"""The shorter way to the client: written at once where that is safe, and its leaving is told once, to whoever still wants to know."""

import asyncio
from typing import Any

import pytest

from proxy.adapters.client_link import ClientLink
from proxy.adapters.flow import Flag
from proxy.adapters.flow import Flow as OurFlow


class Transport:
    def __init__(self) -> None:
        self.written = b""
        self.closing = self.closed = False

    def close(self) -> None:
        self.closed = True

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
    response_started = more_body = False
    keep_alive = waiting_for_100_continue = True
    default_headers: list[tuple[bytes, bytes]] = []  # noqa: RUF012
    ends = 0

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {"method": "POST"}
        self.message_event = Flag()

    def on_response(self) -> None:
        self.ends += 1


class Client:
    def __init__(self) -> None:
        self.transport, self.flow, self.cycle = Transport(), Flow(), Cycle()
        parts: Any = self.transport, self.flow
        self.tasks = set[asyncio.Task[None]]()
        self.link = ClientLink(asyncio.get_running_loop(), *parts, self.tasks)
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


def state(client: Client) -> tuple[bool, bool, int]:
    return client.cycle.response_started, client.cycle.response_complete, client.cycle.ends


async def test_a_short_answer_is_one_write(client: Client) -> None:
    assert client.link.begin_now(200, [(b"content-length", b"2"), (b"a", b"b")], b"hi", whole=True)
    assert client.transport.written == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\na: b\r\n\r\nhi"
    assert state(client) == (True, True, 1)
    await client.cycle.message_event.wait()  # whoever waits for more of the request is told
    assert not client.transport.closed
    assert not client.link.begin_now(200, [], b"again", whole=True)


@pytest.mark.parametrize(
    ("piece", "whole", "body"),
    [(b"hi", True, b"2\r\nhi\r\n0\r\n\r\n"), (b"hi", False, b"2\r\nhi\r\n"), (b"", False, b""), (b"", True, b"0\r\n\r\n")],
)
async def test_a_body_of_unknown_length_begins_with_its_head(client: Client, piece: bytes, whole: bool, body: bytes) -> None:
    assert client.link.begin_now(200, [(b"a", b"b")], piece, whole=whole)
    assert client.transport.written == b"HTTP/1.1 200 OK\r\na: b\r\ntransfer-encoding: chunked\r\n\r\n" + body
    assert state(client) == (True, whole, int(whole))
    assert client.link.write_now(b"x") is not whole


async def test_the_last_answer_of_a_connection_says_so_and_closes_it(client: Client) -> None:
    client.cycle.keep_alive = False
    assert client.link.begin_now(200, [], b"", whole=False)
    assert b"\r\nconnection: close\r\n" in client.transport.written
    assert not client.transport.closed
    client.cycle.response_started = False
    assert client.link.begin_now(200, [], b"", whole=True)
    assert client.transport.closed


@pytest.mark.parametrize(
    ("status", "headers", "whole"),
    [
        (204, [], True),
        (304, [(b"content-length", b"2")], True),
        (200, [(b"content-length", b"3")], True),  # less came than was told
        (200, [(b"content-length", b"2")], False),  # uvicorn keeps account of what is left
        (200, [(b"content-length", b"2"), (b"content-length", b"4")], False),
        (200, [(b"connection", b"close")], True),
        (200, [(b"transfer-encoding", b"chunked")], True),
        (200, [(b"a", b"b\r\nc: d")], True),
        (200, [(b"a", b"b\0")], True),
    ],
)
async def test_a_head_that_is_not_plain_is_left_to_send(
    client: Client, status: int, headers: list[tuple[bytes, bytes]], whole: bool
) -> None:
    assert not client.link.begin_now(status, headers, b"hi", whole=whole)
    assert client.transport.written == b""
    assert state(client) == (False, False, 0)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("flow", "write_paused", True),
        ("cycle", "disconnected", True),
        ("cycle", "response_started", True),
        ("cycle", "scope", {"method": "HEAD"}),
        ("cycle", "default_headers", [(b"server", b"x")]),
        ("link", "cycle", None),
    ],
)
async def test_no_head_is_written_where_send_must_judge(client: Client, part: str, name: str, value: object) -> None:
    setattr(getattr(client, part), name, value)
    assert not client.link.begin_now(200, [], b"x", whole=True)
    assert client.transport.written == b""


async def test_a_request_is_forgotten_once_its_answer_has_begun_and_only_then(client: Client) -> None:
    headers = [(b"host", b"x")]
    client.cycle.scope = {"method": "POST", "path": "/", "headers": headers}
    forgotten = list[int]()
    client.link.forget_parser = lambda: forgotten.append(1)
    client.link.forget_request()
    assert client.cycle.scope["headers"] == [(b"host", b"x")]
    assert not forgotten
    assert client.link.begin_now(200, [], b"a", whole=False)
    client.link.forget_request()
    assert (client.cycle.scope, headers, forgotten) == ({"method": "POST"}, [], [1])


async def test_a_flag_wakes_all_who_wait_and_holds_none_who_left() -> None:
    flag, loop = Flag(), asyncio.get_running_loop()
    waiting = [loop.create_task(flag.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    assert len(flag._waiters or ()) == 2
    flag.set()
    await asyncio.gather(*waiting[1:])
    await flag.wait()
    flag.clear()
    late = loop.create_task(flag.wait())
    await asyncio.sleep(0)
    assert not late.done()
    flag.set()
    await late


async def test_room_is_waited_for_only_while_there_is_none(client: Client) -> None:
    transport: Any = client.transport
    flow, loop = OurFlow(transport), asyncio.get_running_loop()
    await flow.drain()
    flow.pause_writing()
    waiting = [loop.create_task(flow.drain()) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    flow.resume_writing()
    await asyncio.gather(*waiting)
    await flow.drain()
