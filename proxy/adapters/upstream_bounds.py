"""What bounds an exchange with a replica: three patiences of its own, and the bytes that all of them hold together."""

import asyncio
from dataclasses import dataclass
from math import frexp, inf, ldexp
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

STEPS_EXPONENT = 6
STEPS = 1 << (STEPS_EXPONENT - 1)  # at least so many, and at most twice as many timers for a patience
LEFT_S_MIN = 1e-3


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


class Timed(Protocol):
    """What a ``Wheel`` looks at."""

    def look(self) -> None:
        """Its time is past."""


class Wheel:
    """One timer for all that is due at about the same time: a timer each, taken back in time nearly always, costs more than a request's
    parsing. Nobody is looked at before its time, or later than by ``1 / STEPS`` of what it had left.

    Who is not to be looked at any more takes itself out of the set that ``add`` has put it into.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.now_s = loop.time
        self._call_at = loop.call_at
        self._due: dict[float, set[Timed]] = {}  # by the loop's time

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> "Wheel":
        """The one that everybody on a loop shares."""
        wheel = _wheels.get(loop)
        if wheel is None:
            wheel = _wheels[loop] = cls(loop)
        return wheel

    def add(self, one: Timed, due_s: float) -> set[Timed]:
        """Look at it once ``due_s`` is past; returns the set it lies in."""
        _, exponent = frexp(max(due_s - self.now_s(), LEFT_S_MIN))
        step_s = ldexp(1.0, exponent - STEPS_EXPONENT)
        at_s = (due_s // step_s + 1.0) * step_s
        due = self._due.get(at_s)
        if due is None:
            due = self._due[at_s] = set()
            self._call_at(at_s, self._fall, at_s)
        due.add(one)
        return due

    def _fall(self, at_s: float) -> None:
        for one in list(self._due.pop(at_s)):
            one.look()


_wheels: WeakKeyDictionary[asyncio.AbstractEventLoop, Wheel] = WeakKeyDictionary()


class Patient:
    """What has a ``Patience``, and is looked at when that may be over. ``_begun``: a byte of the body has come."""

    __slots__ = ("_asked_s", "_begun", "_patience", "_received_s", "_watched", "_wheel")

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._watched: set[Timed] | None = None
        self._patience = Patience()
        self._asked_s = self._received_s = 0.0
        self._begun = False

    def _wind(self, now_s: float) -> None:
        """Have somebody look at the next moment at which a patience may be over."""
        due_s = self._patience.due_s(self._asked_s, self._received_s if self._begun else None, now_s)
        if due_s < inf:
            self._watched = self._wheel.add(self, due_s)

    def look(self) -> None:
        """See whether a patience is over."""
        now_s = self._wheel.now_s()
        if self._client_is_slow():
            self._received_s = now_s
        over = self._patience.over(self._asked_s, self._received_s if self._begun else None, now_s)
        if over is None:
            self._wind(now_s)
        else:
            self._ran_out(over)

    def _stop(self) -> None:
        """Nothing is waited for any more."""
        if self._watched is not None:
            self._watched.discard(self)
            self._watched = None

    def _client_is_slow(self) -> bool:
        """Whether what was received lies here."""
        raise NotImplementedError

    def _ran_out(self, over: Over) -> None:
        """A patience is over."""
        raise NotImplementedError
