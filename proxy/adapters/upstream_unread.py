"""What of an answer has come and was not read yet: while it is much, the replica waits.

Reading stops while ``BUFFER_BYTES_MAX`` lie unread, or ``BUFFER_BYTES_UNCOUNTED`` when all answers together have more than the client's
bound (``Buffered``), so a slow client slows its engine and no memory fills.
"""

from proxy.adapters.upstream_bounds import Buffered, Patient, Wheel
from proxy.adapters.upstream_connection import Connection

BUFFER_BYTES_MAX = 256 * 1024
BUFFER_BYTES_UNCOUNTED = 16 * 1024  # of each exchange: what lies there only until the next turn of the loop need not be counted


class Unread(Patient):
    """Of one answer."""

    __slots__ = ("_all_buffered", "_buffered", "_chunks", "_connection", "_counted")

    def __init__(self, wheel: Wheel, connection: Connection, buffered: Buffered) -> None:
        super().__init__(wheel)
        self._connection: Connection | None = connection
        self._chunks: list[bytes] = []
        self._buffered = self._counted = 0  # bytes of those, and how many of them the client's bound knows
        self._all_buffered = buffered

    def _taken(self) -> bytes:
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks = []
        if self._counted:
            self._give_back()
        self._buffered = 0
        return data

    def _hold(self, connection: Connection) -> None:
        """More lies here than a turn of the loop leaves: count it, and let the replica wait where it is too much."""
        self._all_buffered.held_bytes += self._buffered - self._counted
        self._counted = self._buffered
        if self._buffered > BUFFER_BYTES_MAX or self._all_buffered.full:
            connection.pause_reading()

    def _give_back(self) -> None:
        """What was counted is taken, or dropped."""
        self._all_buffered.held_bytes -= self._counted
        self._counted = 0
        self._received_s = self._wheel.now_s()
        if self._connection is not None:
            self._connection.resume_reading()

    def _client_is_slow(self) -> bool:
        return bool(self._chunks)
