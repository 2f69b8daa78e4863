"""One connection for the calls that every request makes: sent as they are made, answered in their order.

redis-py takes a connection out of a pool for each call, and reads its answer in a chain of coroutines: 70 us of ours for a reservation of
which its own packing, parsing and waking take 20. Here calls of one turn of the loop go out together on a connection that redis-py made
(address, sentinels, cluster, TLS, user, database are all its own matter) and that is then read by a protocol.

A call is never sent again, but one that a node of a cluster did not carry out, because the slot is not its own (any more): redis-py sends
that to whoever has it. A connection on which a call was given up, or which leads to a server that may not write, is *left*: what
is under way on it may be answered still, and the next call makes a new one. Whoever calls while one is being made waits for that.

Fails: with the errors of redis-py, and ConnectionError where ``CALLS_MAX`` are under way: the store has said nothing for long.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import hiredis
from redis import exceptions
from redis.asyncio.connection import DefaultParser

from proxy.adapters.stall_proof import stall_proof_timeout

Argument = bytes | str | int | float
_pack: Any = hiredis.pack_command  # its stub takes one argument
CALLS_MAX = 4096  # at 500 a second and a time-out of a second for most, some 1,000 are under way when a store falls silent
CANCEL_S = 0.05  # until one that is just connecting is told again to leave off
# The slot is another node's, or moves: nothing was done.
_NOT_DONE = (exceptions.MovedError, exceptions.AskError, exceptions.TryAgainError)
_ELSEWHERE = (*_NOT_DONE, exceptions.ReadOnlyError, exceptions.ClusterDownError)  # another server is to have the calls


class _Asked:
    """Commands sent together, and what came back so far."""

    __slots__ = ("count", "future", "replies")

    def __init__(self, count: int, future: "asyncio.Future[list[Any]]") -> None:
        self.count = count
        self.future = future
        self.replies: list[Any] = []


class _Wire(asyncio.Protocol):
    """A connection taken over from redis-py, which is kept to close it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._transport: Any = connection._writer.transport
        self._before: Any = self._transport.get_protocol()
        self._reader = hiredis.Reader(protocolError=exceptions.InvalidResponse, replyError=DefaultParser.parse_error)
        self._asked: deque[_Asked] = deque()
        self.left = False
        self._transport.set_protocol(self)

    @property
    def usable(self) -> bool:
        """Whether the next call may go out on it."""
        return not self.left and not self._transport.is_closing()

    @property
    def gone(self) -> bool:
        """Whether it is closed."""
        return bool(self._transport.is_closing())

    def ask(self, packed: bytes, count: int) -> "asyncio.Future[list[Any]]":
        """Send ``count`` commands; their replies, errors among them."""
        if len(self._asked) >= CALLS_MAX:
            raise exceptions.ConnectionError(f"{CALLS_MAX} calls are under way")
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._asked.append(_Asked(count, future))
        self._transport.write(packed)
        return future

    def data_received(self, data: bytes) -> None:
        """Hand out whole replies."""
        reader, asked = self._reader, self._asked
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                one = asked[0]
                one.replies.append(reply)
                if isinstance(reply, _ELSEWHERE):
                    self.left = True
                if len(one.replies) == one.count:
                    asked.popleft()
                    if not one.future.done():
                        one.future.set_result(one.replies)
        except (exceptions.InvalidResponse, IndexError):  # no RESP, or an answer to nothing
            self._transport.abort()
        if self.left:
            self._close_when_done()

    def connection_lost(self, exc: Exception | None) -> None:
        """Whatever is under way may have been carried out."""
        for one in self._asked:
            if not one.future.done():
                one.future.set_exception(exceptions.ConnectionError("Connection closed by server." if exc is None else str(exc)))
        self._asked.clear()
        self._before.connection_lost(exc)  # redis-py waits for it where it closes the connection

    def leave(self) -> None:
        """A call was given up: nothing more is to be sent here."""
        self.left = True
        self._close_when_done()

    def _close_when_done(self) -> None:
        if all(one.future.done() for one in self._asked):
            self._transport.close()

    async def aclose(self) -> None:
        """Close it at once."""
        self.left = True
        self._transport.abort()
        await self._connection.disconnect()


class WirePipeline:
    """Commands for one round trip, as a pipeline of redis-py takes them."""

    def __init__(self, wires: "RedisWires") -> None:
        self._wires = wires
        self._commands: list[tuple[Argument, ...]] = []

    def execute_command(self, *arguments: Argument) -> None:
        """Queue a command."""
        self._commands.append(arguments)

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send them and return every reply, errors in their place."""
        replies = await self._wires.ask(self._commands)
        for reply in replies if raise_on_error else ():
            if isinstance(reply, Exception):
                raise reply
        return replies


class RedisWires:
    """The present wire and those that were left. ``client`` is redis-py's; ``connection`` makes one of its connections, not yet open."""

    def __init__(self, client: Any, connection: Callable[[], Awaitable[Any]], connect_s_max: float) -> None:
        self._client = client
        self._connection = connection
        self._connect_s_max = connect_s_max
        self._wire: _Wire | None = None
        self._wires: list[_Wire] = []
        self._connecting: asyncio.Task[_Wire] | None = None

    def __repr__(self) -> str:
        """Counts for people and tests."""
        return f"<RedisWires wires={len(self._wires)} connecting={self._connecting is not None}>"

    def pipeline(self, transaction: Any = None) -> WirePipeline:  # noqa: ARG002  as redis-py's
        """Commands that go in one round trip; never one step."""
        return WirePipeline(self)

    async def execute_command(self, *arguments: Argument) -> Any:
        """Send one command."""
        (reply,) = await self.ask([arguments])
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def ask(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Send commands together. Every reply, errors in their place."""
        wire = self._wire
        if wire is None or not wire.usable:
            wire = await self._new_wire()
        packed = _pack(commands[0]) if len(commands) == 1 else b"".join(map(_pack, commands))
        try:
            replies = await wire.ask(packed, len(commands))
        except asyncio.CancelledError:
            wire.leave()
            raise
        if wire.left and any(isinstance(reply, _NOT_DONE) for reply in replies):
            return [await self._elsewhere(command, reply) for command, reply in zip(commands, replies, strict=True)]
        return replies

    async def _elsewhere(self, command: tuple[Argument, ...], reply: Any) -> Any:
        """Let redis-py, which keeps up with a cluster, send what was not carried out."""
        if not isinstance(reply, _NOT_DONE):
            return reply
        try:
            return await self._client.execute_command(*command)
        except exceptions.RedisError as error:
            return error

    async def _new_wire(self) -> _Wire:
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connected())
            self._connecting.add_done_callback(self._note)
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled():  # it was not us who left off
                raise exceptions.ConnectionError("The connections are being closed.") from None
            raise

    def _note(self, task: "asyncio.Task[_Wire]") -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # else asyncio complains where every caller gave up before it failed

    async def _connected(self) -> _Wire:
        async with stall_proof_timeout(self._connect_s_max):
            connection = await self._connection()
            try:
                await connection.connect()
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
        wire = self._wire = _Wire(connection)
        gone = [one for one in self._wires if one.gone]
        self._wires = [*(one for one in self._wires if not one.gone), wire]
        for one in gone:
            await one.aclose()
        return wire

    async def aclose(self) -> None:
        """Close every connection, also one that is being made."""
        while self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting], timeout=CANCEL_S)  # a cancellation in the moment of connecting can be lost
        for wire in self._wires:
            await wire.aclose()
