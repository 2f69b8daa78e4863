"""A connection to the port, with a loop whose time the test tells."""

import asyncio
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from proxy.adapters.http_protocol import BoundedHttpProtocol, ConnectionRules
from proxy.wire.connection_faults import ConnectionFault

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Timer:
    def __init__(self, due_s: float, call: Callable[[], None]) -> None:
        self.due_s, self.call, self.off = due_s, call, False

    def cancel(self) -> None:
        self.off = True


class Loop:
    """Keeps timers and does not run tasks: what is asked of the application is not looked at here."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, call: Callable[[], None]) -> None:
        call()  # a turn of this loop is over at once

    def call_later(self, delay_s: float, call: Callable[..., None], *given: Any) -> Timer:
        return self.call_at(self.now_s + delay_s, call, *given)

    def call_at(self, due_s: float, call: Callable[..., None], *given: Any) -> Timer:
        self.timers.append(Timer(due_s, lambda: call(*given)))
        return self.timers[-1]

    def create_task(self, work: Any) -> "asyncio.Future[None]":
        work.close()
        return asyncio.get_running_loop().create_future()

    def go_to(self, now_s: float) -> None:
        while due := [timer for timer in self.timers if not timer.off and timer.due_s <= now_s]:
            timer = min(due, key=lambda one: one.due_s)
            self.timers.remove(timer)
            self.now_s = timer.due_s
            timer.call()
        self.now_s = now_s


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = self.ended = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def serve(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError(f"tasks are not run here: {scope}, {receive}, {send}")


class Port:
    """A connection to it."""

    def __init__(self) -> None:
        self.loop, self.transport = Loop(), Transport()
        self.faults: list[ConnectionFault] = []
        config = uvicorn.Config(serve, log_config=None, timeout_keep_alive=75, ws="none")
        self.ending = False
        rules = ConnectionRules(200, 10.0, 30.0, self.faults.append, lambda: self.ending)
        self.protocol = BoundedHttpProtocol(
            lambda: rules, config=config, server_state=ServerState(), app_state={}, _loop=self.loop
        )
        self.protocol.connection_made(self.transport)

    def gets(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.protocol.data_received(piece)
