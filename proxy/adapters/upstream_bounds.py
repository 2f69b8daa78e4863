"""What bounds an exchange with a replica: three patiences of its own, and the bytes that all of them hold together."""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple


class Over(NamedTuple):
    """A patience that is over: its policy key, and what to say."""

    key: str
    told: str


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that an exchange may take; None is for ever.

    ``first_byte_s_max`` counts from the request to the first byte of the body, ``idle_s_max`` between bytes of it while the client keeps
    up, ``total_s_max`` from the request to the end.
    """

    first_byte_s_max: float | None = None
    idle_s_max: float | None = None
    total_s_max: float | None = None

    def due_s(self, asked_s: float, received_s: float | None, now_s: float) -> float:
        """The next moment at which one may be over; infinite for never. ``received_s`` is when bytes of the body last came, None before."""
        due_s = inf if self.total_s_max is None else asked_s + self.total_s_max
        if received_s is None and self.first_byte_s_max is not None:
            due_s = min(due_s, asked_s + self.first_byte_s_max)
        if self.idle_s_max is not None:  # before the first byte too: silence may begin right after it
            due_s = min(due_s, (now_s if received_s is None else received_s) + self.idle_s_max)
        return due_s

    def over(self, asked_s: float, received_s: float | None, now_s: float) -> Over | None:
        """Which one is over; None while none is."""
        if self.total_s_max is not None and now_s >= asked_s + self.total_s_max:
            return Over("relay.total", f"not at its end within {self.total_s_max:g} s")
        if received_s is None:
            if self.first_byte_s_max is not None and now_s >= asked_s + self.first_byte_s_max:
                return Over("relay.first_byte", f"no byte of the answer's body within {self.first_byte_s_max:g} s")
        elif self.idle_s_max is not None and now_s >= received_s + self.idle_s_max:
            return Over("relay.idle", f"nothing received for {self.idle_s_max:g} s")
        return None


class Buffered:
    """Bytes that lie unread in all exchanges of a client, those aside that are not counted. ``bytes_max`` None is unlimited."""

    __slots__ = ("bytes_max", "held_bytes")

    def __init__(self, bytes_max: int | None = None) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0

    @property
    def full(self) -> bool:
        """Whether replicas must wait."""
        return self.bytes_max is not None and self.held_bytes > self.bytes_max
