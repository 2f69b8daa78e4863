"""A chunked body whose chunks come whole, one or several with each read: an event stream, that is. It needs no parser of its own.

llhttp's takes a kilobyte for each open stream with what it calls back. Between two chunks all of them know the same, so one that stands
there reads for everybody (``Reader``). Who is sent something else than whole chunks (a part of one, a fault) is told so, gets a parser of
its own that stands where the read began (``resumed``), and the reader is made anew: what is refused is refused by the same parser.
"""

from typing import Any

import httptools

_AS_BEFORE = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
_FAULTS = (httptools.HttpParserError, httptools.HttpParserUpgrade)


def resumed(callbacks: Any) -> httptools.HttpResponseParser:
    """A parser that stands between two chunks of a body. ``callbacks`` hear of its head anew."""
    parser = httptools.HttpResponseParser(callbacks)
    parser.feed_data(_AS_BEFORE)
    return parser


class Reader:
    """Reads whole chunks for any number of streams."""

    __slots__ = ("_ended", "_parser", "_pieces", "_whole")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._begin()

    def read(self, data: bytes) -> bytes | None:
        """What the chunks hold that ``data`` consists of, none of them the last; None where something else is among it."""
        pieces = self._pieces
        self._whole = True  # nothing at all is whole
        try:
            self._parser.feed_data(data)
        except _FAULTS:
            self._whole = False
        if not self._whole or self._ended or not data.endswith(b"\r\n"):
            self._begin()
            pieces.clear()
            return None
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return piece

    def _begin(self) -> None:
        self._whole = self._ended = False
        self._parser = resumed(self)

    # What the parser calls

    def on_chunk_header(self) -> None:
        """A size was read."""
        self._whole = False

    def on_body(self, data: bytes) -> None:
        """A piece of a chunk."""
        self._pieces.append(data)

    def on_chunk_complete(self) -> None:
        """A chunk was read to its line end."""
        self._whole = True

    def on_message_complete(self) -> None:
        """The body is over."""
        self._ended = True


read_chunks = Reader().read
