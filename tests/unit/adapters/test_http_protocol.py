"""How large and slow a request may come to the port, at the edges, with a loop whose time the test tells."""

import pytest

from proxy.adapters.http_protocol import BODY_BYTES_PER_S_MIN
from proxy.wire.connection_faults import ConnectionFault, fault_response
from tests.unit.adapters.http_port import GET, Port

LATE_S = 75.0 / 32  # connections share timers
HEAD = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 9000\r\n\r\n"


@pytest.fixture
async def port() -> Port:
    return Port()


async def test_a_silent_connection_is_an_idle_one(port: Port) -> None:
    port.loop.go_to(1074.9)
    assert not port.transport.closed
    port.loop.go_to(1075.0 + LATE_S)
    assert port.transport.closed
    assert not port.faults
    assert not port.transport.written


@pytest.mark.parametrize("first", [b"", GET])
async def test_line_ends_alone_keep_no_connection(port: Port, first: bytes) -> None:
    """Each of them had made it idle anew: one byte a minute kept it for ever."""
    if first:
        port.gets(first)
        port.protocol._link.begin_now(200, [], b"x", whole=True)
    for second in range(1, 75):
        port.loop.go_to(1000.0 + second)
        port.gets(b"\r\n" if second % 2 else b"\n")
    assert not port.transport.closed
    port.loop.go_to(1075.0 + LATE_S)
    assert port.transport.closed
    assert not port.faults


async def test_a_request_after_line_ends_has_its_whole_time(port: Port) -> None:
    port.loop.go_to(1070.0)
    port.gets(b"\r\n\r\n")
    port.gets(GET)
    port.loop.go_to(5000.0)
    assert not port.transport.closed
    port.gets(b"\r\n")  # while it is answered
    port.protocol._link.begin_now(200, [], b"x", whole=True)
    port.loop.go_to(5074.9)
    assert not port.transport.closed
    port.loop.go_to(5075.0 + LATE_S)
    assert port.transport.closed


async def test_a_head_has_its_time(port: Port) -> None:
    port.gets(b"GET / HT")
    port.loop.go_to(1009.9)
    port.gets(b"TP/1.1\r\nho")  # what comes meanwhile gives it no more
    assert not port.transport.closed
    port.loop.go_to(1010.0)
    assert port.transport.ended
    assert port.faults == [ConnectionFault.HEAD_TIMEOUT]
    assert port.transport.written == fault_response(ConnectionFault.HEAD_TIMEOUT)
    assert not port.transport.closed  # until the other side has, or was given time to read
    port.loop.go_to(1012.0)
    assert port.transport.closed


async def test_a_whole_request_leaves_no_timer_but_the_idle_ones(port: Port) -> None:
    port.gets(GET)
    assert len([timer for timer in port.loop.timers if not timer.off]) == 1
    port.loop.go_to(5000.0)
    assert not port.transport.closed
    assert port.loop.timers == []


async def test_a_connection_is_idle_from_the_end_of_its_answer(port: Port) -> None:
    port.gets(GET)
    port.loop.go_to(1070.0)  # the timer of the silence before runs still
    port.protocol._link.begin_now(200, [], b"x", whole=True)
    assert len(port.loop.timers) == 1
    port.loop.go_to(1144.9)
    assert not port.transport.closed
    port.loop.go_to(1145.0 + LATE_S)
    assert port.transport.closed


async def test_an_idle_connection_that_is_asked_again_stays(port: Port) -> None:
    port.gets(GET)
    port.protocol._link.begin_now(200, [], b"x", whole=True)
    port.loop.go_to(1074.0)
    port.gets(GET)
    port.loop.go_to(5000.0)
    assert not port.transport.closed
    port.protocol._link.begin_now(200, [], b"x", whole=True)
    port.loop.go_to(5074.9)
    assert not port.transport.closed
    port.loop.go_to(5075.0 + LATE_S)
    assert port.transport.closed


async def test_requests_that_came_together_are_answered_in_turn(port: Port) -> None:
    port.gets(GET + GET.replace(b"/", b"/second", 1) + GET)
    asked = []
    for _ in range(3):
        cycle = port.protocol._answering
        assert cycle is not None
        asked.append(cycle.scope["path"])
        port.protocol._link.begin_now(200, [(b"content-length", b"1")], b"x", whole=True)
    assert asked == ["/", "/second", "/"]
    assert port.transport.written == b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx" * 3


async def test_a_body_has_its_time_and_more_for_what_comes(port: Port) -> None:
    port.gets(HEAD)
    port.loop.go_to(1029.9)
    port.gets(b"x" * (2 * BODY_BYTES_PER_S_MIN))
    port.loop.go_to(1031.9)
    assert not port.transport.closed
    port.loop.go_to(1032.0)
    assert port.transport.ended
    assert port.faults == [ConnectionFault.BODY_TIMEOUT]
    assert port.transport.written.startswith(b"HTTP/1.1 408 ")


async def test_a_body_in_time_leaves_no_timer(port: Port) -> None:
    port.gets(HEAD, b"x" * 4500)
    port.loop.go_to(1029.9)
    port.gets(b"x" * 4500)
    port.loop.go_to(5000.0)
    assert not port.transport.closed


async def test_a_body_behind_another_request_has_its_time_from_when_it_is_its_turn(port: Port) -> None:
    port.gets(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" + HEAD)
    port.loop.go_to(1100.0)
    assert not port.faults
    first, _ = port.protocol._answering, port.protocol.pipeline[0]
    assert first is not None
    first.response_complete = True
    port.protocol.on_response_complete()
    port.loop.go_to(1200.0)
    assert port.faults == [ConnectionFault.BODY_TIMEOUT]


def head_of(size: int) -> bytes:
    """A head whose target, names and values count ``size`` bytes as they are counted."""
    field = size - len(b"/") - (len(b"host") + len(b"x") + 4) - (len(b"f") + 4)
    return b"GET / HTTP/1.1\r\nhost: x\r\nf: " + b"a" * field + b"\r\n\r\n"


@pytest.mark.parametrize("first", [None, 1, 100, -1])
@pytest.mark.parametrize(("size", "refused"), [(199, False), (200, False), (201, True)])
async def test_a_head_as_large_as_it_may_be(port: Port, size: int, refused: bool, first: int | None) -> None:
    """In one read, or with the rest of it in a second."""
    head = head_of(size)
    port.gets(*filter(None, [head[:first], head[first:] if first is not None else b""]))
    assert port.transport.ended is refused
    assert port.faults == [ConnectionFault.HEAD_TOO_LARGE] * refused
    assert port.transport.written.startswith(b"HTTP/1.1 431 ") is refused


@pytest.mark.parametrize(("size", "refused"), [(199, False), (200, False), (201, True)])
async def test_a_head_that_never_ends(port: Port, size: int, refused: bool) -> None:
    port.gets(b"GET /")
    for _ in range(size):
        port.gets(b"a")
    assert port.transport.ended is refused
    assert port.faults == [ConnectionFault.HEAD_TOO_LARGE] * refused


@pytest.mark.parametrize(("size", "refused"), [(208, False), (209, True)])
async def test_what_surrounds_a_chunked_body_is_bounded_by_it(port: Port, size: int, refused: bool) -> None:
    """An extension or trailer that never ends: 200 bytes, and 8 for the one byte of body."""
    port.gets(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    port.gets(b"1\r\nx\r\n" + b"0\r\nt: " + b"a" * (size - 11))
    assert port.transport.ended is refused
    assert port.faults == [ConnectionFault.MALFORMED] * refused


async def test_a_body_in_the_smallest_chunks_is_taken(port: Port) -> None:
    port.gets(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    port.gets(*[b"1\r\nx\r\n"] * 2000, b"0\r\n\r\n")
    assert not port.faults
    cycle = port.protocol.cycle
    assert bytes(cycle.body) == b"x" * 2000
    assert not cycle.more_body


async def test_nothing_is_heard_after_a_fault(port: Port) -> None:
    port.gets(b"nonsense\r\n\r\n")
    written = port.transport.written
    assert written == fault_response(ConnectionFault.MALFORMED)
    port.gets(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"nonsense")
    assert port.transport.written == written
    assert port.faults == [ConnectionFault.MALFORMED]


async def test_an_answer_closes_its_connection_once_the_process_takes_its_leave(port: Port) -> None:
    request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    port.gets(request)
    running = port.protocol.cycle
    port.ending = True
    assert running.keep_alive  # it may have told so already
    running.response_complete = True
    port.gets(request)
    assert not port.protocol.cycle.keep_alive


@pytest.mark.parametrize("fault", ConnectionFault)
def test_every_fault_has_a_response(fault: ConnectionFault) -> None:
    head, _, body = fault_response(fault).partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert b"connection: close" in head
    assert b"x-should-retry: false" in head
    assert f'"code":"{fault.value}"'.encode() in body
