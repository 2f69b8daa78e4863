"""The connection for scripts, before a server that says what it is told to: order, calls given up, servers that are not the right one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import hiredis
import pytest
from redis import exceptions
from redis.asyncio.connection import Connection

from proxy.adapters import redis_wire
from proxy.adapters.redis_wire import RedisWires

CONNECT_S_MAX = 5.0  # the machine of a test may be busy


class Server:
    """Answers ECHO x with x, RAW x with x as it stands, and WAIT when it is let to; counts connections and says which are open."""

    def __init__(self) -> None:
        self.connections = 0
        self.writers: set[asyncio.StreamWriter] = set()
        self.changed = asyncio.Condition()
        self.go = asyncio.Event()
        self.greets = asyncio.Event()  # whether a connection is set up
        self.greets.set()
        self.waits = asyncio.Event()  # somebody said WAIT

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self.changed:
            self.connections += 1
            self.writers.add(writer)
            self.changed.notify_all()
        parser = hiredis.Reader()
        try:
            while data := await reader.read(65536):
                parser.feed(data)
                while (command := parser.gets()) is not False:
                    writer.write(await self.reply(command))
        except ConnectionError:
            pass
        finally:
            async with self.changed:
                self.writers.discard(writer)
                self.changed.notify_all()
            writer.close()

    async def until(self, so: Callable[[], bool]) -> None:
        """Wait for connections to come or go."""
        async with asyncio.timeout(CONNECT_S_MAX), self.changed:
            await self.changed.wait_for(so)

    async def reply(self, command: list[bytes]) -> bytes:
        match command:
            case [b"ECHO", text]:
                return b"$%d\r\n%b\r\n" % (len(text), text)
            case [b"RAW", text]:
                return text
            case [b"WAIT", text]:
                self.waits.set()
                await self.go.wait()
                return b"+%b\r\n" % text
            case _:
                await self.greets.wait()
                return b"+OK\r\n"


class Elsewhere:
    """redis-py's client of the cluster: whatever it is told, it did."""

    async def execute_command(self, *arguments: Any) -> Any:
        return ["elsewhere", *arguments]


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, RedisWires]]:
    served = Server()
    listening = await asyncio.start_server(served, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]

    async def connection() -> Connection:
        return Connection(host="127.0.0.1", port=port, protocol=2)

    wires = RedisWires(Elsewhere(), connection, CONNECT_S_MAX)
    try:
        yield served, wires
    finally:
        served.go.set()
        served.greets.set()
        await wires.aclose()
        listening.close()
        await listening.wait_closed()


async def echoed(wires: RedisWires, text: bytes) -> bytes:
    async with asyncio.timeout(CONNECT_S_MAX):
        reply = await wires.execute_command("ECHO", text)
    assert isinstance(reply, bytes)
    return reply


async def test_all_calls_go_over_one_connection_and_each_has_its_own_answer(server: tuple[Server, RedisWires]) -> None:
    served, wires = server
    texts = [b"%d" % number * number for number in range(200)]
    assert await asyncio.gather(*(echoed(wires, text) for text in texts)) == texts
    pipeline = wires.pipeline(transaction=False)
    for text in texts:
        pipeline.execute_command("ECHO", text)
    assert await pipeline.execute() == texts
    assert served.connections == 1, "who called while it was being made waited for it"


async def test_errors_are_raised_and_stand_in_their_place_in_a_pipeline(server: tuple[Server, RedisWires]) -> None:
    _, wires = server
    with pytest.raises(exceptions.NoScriptError):
        await wires.execute_command("RAW", b"-NOSCRIPT no\r\n")
    pipeline = wires.pipeline()
    pipeline.execute_command("RAW", b"-NOSCRIPT no\r\n")
    pipeline.execute_command("ECHO", b"a")
    error, text = await pipeline.execute(raise_on_error=False)
    assert isinstance(error, exceptions.NoScriptError)
    assert text == b"a"
    with pytest.raises(exceptions.NoScriptError):
        await pipeline.execute()


async def test_a_late_answer_is_nobody_elses_and_the_next_call_has_a_new_connection(server: tuple[Server, RedisWires]) -> None:
    served, wires = server
    given_up = asyncio.create_task(wires.execute_command("WAIT", b"late"))
    await served.waits.wait()
    behind = asyncio.create_task(echoed(wires, b"behind it"))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    assert await echoed(wires, b"next") == b"next"
    assert served.connections == 2
    served.go.set()
    assert await behind == b"behind it", "what was under way is answered still"
    await served.until(lambda: len(served.writers) == 1)  # then nobody needs the first any more


async def test_a_server_that_hangs_up_fails_what_is_under_way_and_nothing_after_it(server: tuple[Server, RedisWires]) -> None:
    served, wires = server
    under_way = asyncio.create_task(wires.execute_command("WAIT", b"x"))
    await served.waits.wait()
    (writer,) = served.writers
    writer.transport.abort()
    with pytest.raises(exceptions.ConnectionError):
        await under_way
    assert await echoed(wires, b"again") == b"again"


@pytest.mark.parametrize("error", [b"-READONLY replica\r\n", b"-CLUSTERDOWN down\r\n"])
async def test_a_server_that_may_not_write_is_left(server: tuple[Server, RedisWires], error: bytes) -> None:
    served, wires = server
    with pytest.raises((exceptions.ReadOnlyError, exceptions.ClusterDownError)):
        await wires.execute_command("RAW", error)
    assert await echoed(wires, b"a") == b"a"
    assert served.connections == 2


@pytest.mark.parametrize("error", [b"-MOVED 1 h:1\r\n", b"-ASK 1 h:1\r\n", b"-TRYAGAIN no\r\n"])
async def test_what_a_node_did_not_do_is_sent_to_whoever_has_the_slot(server: tuple[Server, RedisWires], error: bytes) -> None:
    _, wires = server
    assert await wires.execute_command("RAW", error) == ["elsewhere", "RAW", error]
    pipeline = wires.pipeline()
    pipeline.execute_command("ECHO", b"done")
    pipeline.execute_command("RAW", error)
    assert await pipeline.execute() == [b"done", ["elsewhere", "RAW", error]], "what was done is not done again"


async def test_no_more_calls_are_under_way_than_a_store_that_is_silent_may_have(
    server: tuple[Server, RedisWires], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, wires = server
    monkeypatch.setattr(redis_wire, "CALLS_MAX", 3)
    first = asyncio.create_task(wires.execute_command("WAIT", b"x"))
    await served.waits.wait()
    others = [asyncio.create_task(echoed(wires, b"%d" % number)) for number in range(3)]
    await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
    assert [task.done() for task in others] == [False, False, True]
    assert isinstance(others[2].exception(), exceptions.ConnectionError)
    served.go.set()
    assert await asyncio.gather(first, *others[:2]) == [b"x", b"0", b"1"]


async def test_who_gives_up_while_connecting_leaves_it_to_the_others(server: tuple[Server, RedisWires]) -> None:
    served, wires = server
    served.greets.clear()
    first, second = asyncio.create_task(echoed(wires, b"1")), asyncio.create_task(echoed(wires, b"2"))
    await served.until(lambda: served.connections == 1)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    served.greets.set()
    assert await second == b"2"
    assert served.connections == 1


async def test_closing_leaves_no_connection_behind_whoever_was_connecting(server: tuple[Server, RedisWires]) -> None:
    served, wires = server
    served.greets.clear()
    asking = asyncio.create_task(echoed(wires, b"1"))
    await served.until(lambda: served.connections == 1)
    await wires.aclose()
    with pytest.raises(exceptions.ConnectionError):
        await asking
    served.greets.set()
    await served.until(lambda: not served.writers)


async def test_what_is_no_answer_ends_the_connection(server: tuple[Server, RedisWires]) -> None:
    served, wires = server
    with pytest.raises(exceptions.ConnectionError):
        await wires.execute_command("RAW", b"nonsense\r\n")
    assert await echoed(wires, b"a") == b"a"
    assert served.connections == 2
