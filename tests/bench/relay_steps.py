"""CPU of the relay between the two sockets, without any: one request, one event of a stream; here and, in turns, in another clone.

    python -m tests.bench.relay_steps [--against DIR] [--rounds 5] [--requests 10000] [--events 40000] [--profile request]

Our HTTP protocol, the relay and the upstream client run on a real loop between two transports that are plain objects: a client that asks
again as soon as it is answered, and a replica that answers in the next turn of the loop. What is left out is the kernel's work and
admission. Microseconds of this thread's CPU: the least of all rounds, and of each the tenth percentile of its slices, for what else runs
on the machine only ever adds. ``--profile`` runs ``request`` or ``event`` once under cProfile and shows what is called how often.
"""

import argparse
import asyncio
import cProfile
import json
import pstats
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop
from uvicorn.server import ServerState

from proxy.adapters.http_protocol import BoundedHttpProtocol, ConnectionRules
from proxy.adapters.upstream import HttpUpstream
from proxy.adapters.web_server import server_config
from proxy.ports import Receive, Send
from proxy.serving.client import NamedSend, link_in
from proxy.serving.relay import relay
from proxy.serving.relay_result import RelayHooks, RelayRequest
from proxy.serving.services import announced_bytes, read_body
from tests.bench.relay_load import ANSWER as PLAIN
from tests.bench.relay_load import CHUNK, STREAM_HEAD, WORDS, whole

HERE = Path(__file__).resolve().parents[2]
CLIENTS = 64
TURNS = CLIENTS + 20  # of the loop, within which all streams flow
SLICES = 20  # of a round, each measured alone: a tenth of them is below what is told
REPLICA = "http://127.0.0.1:9"
BODY = b'{"model":"m","messages":[{"role":"user","content":"%b"}],"max_tokens":16}' % b" ".join(WORDS * 6)
HEAD = (
    b"POST /%b HTTP/1.1\r\nhost: bench\r\nuser-agent: bench\r\nauthorization: Bearer sk-1\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b"
)
EXTRA = [(b"x-kvgate-outcome", b"completed"), (b"x-kvgate-queue-ms", b"0"), (b"x-kvgate-replica", b"127.0.0.1:9")]
CHILD = """
import sys
sys.path.insert(0, {clone!r})
import proxy
sys.path.insert(0, {here!r})
from tests.bench.relay_steps import child
child({requests}, {events})
"""


class Clock:
    """The process's clock, as ``adapters.clock`` has it."""

    def now_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return 0.0


class Transport:
    """Takes writes, and tells ``on_write`` of each."""

    def __init__(self, on_write: Callable[[bytes], None]) -> None:
        self.on_write = on_write
        self.closing = False

    def write(self, data: bytes) -> None:
        self.on_write(data)

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True

    close = abort

    def pause_reading(self) -> None:
        """A replica in this file never is ahead."""

    resume_reading = pause_reading

    def get_extra_info(self, name: str) -> Any:  # noqa: ARG002
        return None


class Loop(uvloop.Loop):
    """Connections to replicas are objects of this process; ``streaming`` are those that got a stream's head."""

    streaming: list[Any]

    async def create_connection(self, factory: Callable[[], Any], *_: Any, **__: Any) -> Any:
        connection = factory()
        answer = whole(PLAIN)

        def written(data: bytes) -> None:
            if data.startswith(b"POST /stream"):
                self.streaming.append(connection)
                self.call_soon(connection.data_received, STREAM_HEAD + CHUNK)
            else:
                self.call_soon(connection.data_received, answer)

        transport = Transport(written)
        connection.connection_made(transport)
        return transport, connection


def app_on(upstream: HttpUpstream) -> Callable[[dict[str, Any], Receive, Send], Awaitable[None]]:
    """What kvgate does around its relay, without reading and admitting."""
    hooks, clock = RelayHooks(on_progress=lambda _tokens: None), Clock()

    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        named = NamedSend(send, b"req-1", link=link_in(scope))
        body = await read_body(receive, 1 << 22, announced_bytes(scope))
        request = RelayRequest(REPLICA, b"POST", scope["raw_path"], scope["headers"], body, repeatable=True)
        await relay(receive, named, upstream, request, clock=clock, hooks=hooks, extra_headers=EXTRA)

    return app


class Bench:
    """Clients of one server in this process."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.upstream = HttpUpstream()
        rules = ConnectionRules(64 * 1024, 10.0, 60.0, lambda _: None, lambda: False)
        self.config = server_config(app_on(self.upstream), lambda: rules)
        self.config.load()
        self.state = ServerState()

    def client(self, on_write: Callable[[bytes], None]) -> BoundedHttpProtocol:
        """A connection that has been made."""
        protocol: BoundedHttpProtocol = self.config.http_protocol_class(  # type: ignore[operator, assignment]
            config=self.config, server_state=self.state, app_state={}, _loop=self.loop
        )
        protocol.connection_made(Transport(on_write))  # type: ignore[arg-type]
        return protocol

    async def requests(self, number: int) -> float:
        """Microseconds of one, ``CLIENTS`` being open."""
        left, answered, ended = number, 0, self.loop.create_future()
        message = HEAD % (b"plain", len(BODY), BODY)

        def ask() -> None:
            def written(data: bytes) -> None:
                nonlocal left, answered
                if not data.endswith(b"}}"):
                    return
                answered += 1
                if left:
                    left -= 1
                    self.loop.call_soon(protocol.data_received, message)
                elif answered == number and not ended.done():
                    ended.set_result(None)

            protocol = self.client(written)
            protocol.data_received(message)

        began_s = time.thread_time()
        left -= CLIENTS
        for _ in range(CLIENTS):
            ask()
        await ended
        return 1e6 * (time.thread_time() - began_s) / number

    async def events(self, number: int) -> float:
        """Microseconds of one event of a stream that flows."""
        self.loop.streaming = []
        seen = 0

        def written(data: bytes) -> None:
            nonlocal seen
            seen += data.count(b"data: ")

        for _ in range(CLIENTS):
            self.client(written).data_received(HEAD % (b"stream", len(BODY), BODY))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        streaming = self.loop.streaming
        assert seen == CLIENTS, seen
        began_s = time.thread_time()
        for _ in range(number // CLIENTS):
            for one in streaming:
                one.data_received(CHUNK)
        used_s = time.thread_time() - began_s
        assert seen == CLIENTS + number // CLIENTS * CLIENTS, seen
        return 1e6 * used_s / (number // CLIENTS * CLIENTS)


def played(what: str, number: int, *, profile: bool = False) -> float:
    """Microseconds each."""
    loop = Loop()
    asyncio.set_event_loop(loop)

    async def play() -> float:
        bench = Bench(loop)
        await bench.requests(CLIENTS * 2)  # warm
        if not profile:
            measure = bench.requests if what == "request" else bench.events
            return sorted([await measure(number // SLICES) for _ in range(SLICES)])[SLICES // 10]
        seen = cProfile.Profile()
        seen.enable()
        cost_us = await (bench.requests if what == "request" else bench.events)(number)
        seen.disable()
        pstats.Stats(seen).sort_stats("tottime").print_stats(45)
        return cost_us

    try:
        return loop.run_until_complete(play())
    finally:
        loop.close()


def child(requests: int, events: int) -> None:
    """A round in a process of its own: its figures as a line."""
    sys.stdout.write(json.dumps({"request": played("request", requests), "event": played("event", events)}) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="DIR", help="another clone, to be measured in turns with this one")
    parser.add_argument("--rounds", type=int, default=5, help="of each clone (default %(default)s)")
    parser.add_argument("--requests", type=int, default=10_000, help="of a round (default %(default)s)")
    parser.add_argument("--events", type=int, default=40_000, help="of a round (default %(default)s)")
    parser.add_argument("--profile", choices=("request", "event"), help="show what is called, instead")
    options = parser.parse_args(arguments)
    if options.profile:
        played(options.profile, options.requests if options.profile == "request" else options.events, profile=True)
        return 0
    clones = [str(HERE), *([options.against] if options.against else [])]
    found: dict[str, list[dict[str, float]]] = {clone: [] for clone in clones}
    for _ in range(options.rounds):
        for clone in clones:
            code = CHILD.format(clone=clone, here=str(HERE), requests=options.requests, events=options.events)
            ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            found[clone].append(json.loads(ran.stdout))
    for what in ("request", "event"):
        least = {clone: min(one[what] for one in rounds) for clone, rounds in found.items()}
        told = [f"{name} {cost_us:.1f}" for name, cost_us in zip(("here", "there"), least.values(), strict=False)]
        ratio = f"  ratio {least[clones[0]] / least[clones[1]]:.2f}" if options.against else ""
        sys.stdout.write(f"us per {what}: {'  '.join(told)}{ratio}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
