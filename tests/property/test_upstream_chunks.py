"""Whatever a replica sends as a chunked body, cut anywhere: reading whole chunks without a parser of one's own tells the same as with one.

The reference is the same exchange that never finds whole chunks, so that llhttp reads all of it from head to end.
"""

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.adapters import upstream_exchange
from proxy.adapters.upstream_bounds import Buffered, Wheel
from proxy.adapters.upstream_chunks import Reader
from proxy.adapters.upstream_connection import Connection
from proxy.adapters.upstream_exchange import Exchange

HEADS = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nconnection: close\r\n\r\n",
    b"\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
    b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
)
SIZES = (b"%x", b"%X", b"0%x", b"%x;a=b", b"%x ")
ENDS = (
    b"",
    b"0\r\n\r\n",
    b"0\r\nx: y\r\n\r\n",
    b"00\r\n\r\n",
    b"0\r\n\r\nHTTP/1.1 200 OK\r\n",
    b"0\r\n\r\n3\r\nabc\r\n",
    b"0\r\n",
)
DATA = st.one_of(
    st.binary(max_size=20), st.sampled_from([b"data: x\n\n", b"\r\n", b"0\r\n\r\n", b"3\r\nabc\r\n", b"a" * 300, b"b" * 20_000])
)


def chunk(data: bytes, form: bytes) -> bytes:
    return form % len(data) + b"\r\n" + data + b"\r\n"


@st.composite
def answers(draw: st.DrawFn) -> list[bytes]:
    """What the replica sends, by reads: most are cut where chunks end."""
    plain = st.sampled_from([SIZES[0]] * 8 + [*SIZES])
    parts = [draw(st.sampled_from([HEADS[0]] * 4 + [*HEADS]))]
    parts += [chunk(data, draw(plain)) for data in draw(st.lists(DATA, max_size=6))]
    parts.append(draw(st.sampled_from(ENDS)))
    if draw(st.integers(0, 3)) == 0:  # a byte of it is something else
        number = draw(st.integers(0, len(parts) - 1))
        at = draw(st.integers(0, len(parts[number])))
        parts[number] = (
            parts[number][:at] + draw(st.sampled_from([b"", b"\n", b"\r", b"0", b"x", b"f"])) + parts[number][at + 1 :]
        )
    reads = [b""]
    for part in parts:
        at = draw(st.integers(0, len(part))) if draw(st.integers(0, 3)) == 0 else 0
        reads[-1] += part[:at]
        if draw(st.integers(0, 3)):
            reads.append(b"")
        reads[-1] += part[at:]
    return [read for read in reads if read]


class Transport:
    """Of a replica's connection."""

    def __init__(self) -> None:
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True

    def get_extra_info(self, _name: str) -> None:
        return None

    def write(self, _data: bytes) -> None:
        """Nobody reads it."""

    pause_reading = resume_reading = lambda _self: None


def told(reads: list[bytes], poured_from: int | None, room: list[bool]) -> tuple[object, ...]:
    """All that can be seen of the exchange; from the read ``poured_from`` on it is poured, to somebody who has ``room`` or not."""
    loop = asyncio.new_event_loop()
    try:
        connection = Connection(lambda _: None)
        connection.connection_made(cast("Any", Transport()))
        kept = list[Connection]()
        exchange = Exchange(connection, head_only=False, on_finished=kept.append, buffered=Buffered(), wheel=Wheel(loop))
        exchange._sent = True
        got, steps, turns = bytearray(), list[tuple[object, ...]](), iter(room)

        def take(data: bytes) -> bool:
            got.extend(data)
            return next(turns, True)

        for number, read in enumerate(reads):
            if poured_from is not None and number >= poured_from and exchange._take is None:
                exchange.pour(take)
            if connection.exchange is not None:
                connection.data_received(read)
            error = exchange._error
            steps.append(
                (bytes(got), b"".join(exchange._chunks), exchange._buffered, exchange._ended, exchange._keep, exchange._begun)
            )
            steps.append((exchange.status, exchange.headers, str(error), error and error.answered, exchange._take is None))
        left = bytes(exchange._taken())
        exchange.close()
        return (steps, left, bool(kept), connection.usable)
    finally:
        loop.close()


@given(answers(), st.none() | st.integers(0, 4), st.lists(st.booleans(), max_size=8))
def test_what_is_told_does_not_depend_on_who_reads(reads: list[bytes], poured_from: int | None, room: list[bool]) -> None:
    found = told(reads, poured_from, room)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upstream_exchange, "read_chunks", lambda _: None)
        assert found == told(reads, poured_from, room)


@pytest.mark.parametrize(
    ("data", "piece"),
    [
        (b"3\r\nabc\r\n", b"abc"),
        (b"3\r\nabc\r\n1\r\nd\r\n", b"abcd"),
        (b"3\r\na\r\n\r\n", b"a\r\n"),
        (b"3\r\na\r\n", None),  # the line end is the chunk's own
        (b"3\r\nabc", None),
        (b"3\r\nabc\r\n3\r\n", None),
        (b"3\r\nabc\r\n3", None),
        (b"3\r\nabcd\r\n", None),
        (b"3\r\nabc\r\n0\r\n\r\n", None),
        (b"0\r\n\r\n", None),
        (b"\r\n", None),
    ],
)
def test_whole_chunks_alone_are_read_for_all(data: bytes, piece: bytes | None) -> None:
    reader = Reader()
    assert reader.read(data) == piece
    assert reader.read(b"1\r\nx\r\n") == b"x"  # and nothing of it stays


def test_a_stream_of_whole_chunks_has_no_parser_of_its_own() -> None:
    loop = asyncio.new_event_loop()
    connection = Connection(lambda _: None)
    connection.connection_made(cast("Any", Transport()))
    exchange = Exchange(connection, head_only=False, on_finished=lambda _: None, buffered=Buffered(), wheel=Wheel(loop))
    for read in (HEADS[0], chunk(b"a", b"%x"), chunk(b"b", b"%x") * 3):
        exchange.received(read)
        assert exchange._parser is None
    exchange.received(b"2\r\nc")
    assert exchange._parser is not None
    exchange.received(b"d\r\n0\r\n\r\n")
    assert (exchange._taken(), exchange._ended) == (b"abbbcd", True)
    loop.close()
