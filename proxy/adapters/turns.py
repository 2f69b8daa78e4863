"""How many requests begin in each turn of the event loop.

Of a burst all requests lie there at once. Begun in the same turn, what comes of the first (a connection made, an answer), and every stream
that flows, would be looked at only when the last had been decided: sockets are read once a turn.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from weakref import WeakKeyDictionary

BEGUN_PER_TURN = 4  # a millisecond or two; a turn of its own for each request would cost it 14 us


class Turns:
    """Of one event loop."""

    __slots__ = ("_at_hand", "_left", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = BEGUN_PER_TURN
        self._waiting: deque[Callable[[], None]] = deque()
        self._at_hand = False  # the next turn is asked for

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> "Turns":
        """The one that everybody on a loop shares."""
        turns = _turns.get(loop)
        if turns is None:
            turns = _turns[loop] = cls(loop)
        return turns

    def begin(self, start: Callable[[], None]) -> None:
        """Call ``start``, now or in one of the next turns."""
        if not self._at_hand:
            self._at_hand = True
            self._loop.call_soon(self._turn)
        if self._left and not self._waiting:
            self._left -= 1
            start()
        else:
            self._waiting.append(start)

    def _turn(self) -> None:
        waiting, begun = self._waiting, 0
        while waiting and begun < BEGUN_PER_TURN:
            begun += 1
            waiting.popleft()()
        self._left = BEGUN_PER_TURN - begun
        self._at_hand = bool(begun)
        if begun:
            self._loop.call_soon(self._turn)


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()
