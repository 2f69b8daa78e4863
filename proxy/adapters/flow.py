"""Small stand-ins for what uvicorn keeps for each connection and request: each of its events and queues holds a deque of 600 bytes."""

import asyncio
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl


class Flag:
    """``asyncio.Event`` as far as uvicorn uses it."""

    __slots__ = ("_on", "_waiters")

    def __init__(self) -> None:
        self._on = False
        self._waiters: list[asyncio.Future[None]] | None = None

    def set(self) -> None:
        """Wake whoever waits."""
        self._on = True
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Make others wait from now on."""
        self._on = False

    async def wait(self) -> None:
        """Return once it was set."""
        if self._on:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = [waiter]
        else:
            self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if self._waiters is not None and waiter in self._waiters:
                self._waiters.remove(waiter)


class Flow(FlowControl):
    """uvicorn's flow control, whose flag is there only while it is waited for."""

    __slots__ = ("_room",)

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = self.write_paused = False
        self._room: Flag | None = None

    async def drain(self) -> None:
        """Return when the client takes more."""
        if self.write_paused:
            self._room = self._room or Flag()
            await self._room.wait()

    def pause_writing(self) -> None:
        """The transport's side."""
        self.write_paused = True

    def resume_writing(self) -> None:
        """The transport's side."""
        self.write_paused = False
        if self._room is not None:
            room, self._room = self._room, None
            room.set()


class Line(list[Any]):
    """A queue that is nearly always empty."""

    __slots__ = ()

    def appendleft(self, one: Any) -> None:
        """Put one at the end that is served last."""
        self.insert(0, one)

    def popleft(self) -> Any:
        """Take the one that came last."""
        return self.pop(0)
