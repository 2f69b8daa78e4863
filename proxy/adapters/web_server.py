"""uvicorn for the two ports, under a drain of our own instead of its signal handling."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Protocol, cast

import uvicorn

from proxy.adapters.http_protocol import BoundedHttpProtocol, ConnectionRules
from proxy.adapters.websocket_tunnel import WebSocketTunnel
from proxy.ports.tunnels import Tunnels


class Drain(Protocol):
    """What ends the process in order."""

    async def run(self, *, at_once: bool = False) -> None:
        """Return when the process may end; ``at_once``: take no new requests from now on."""
        ...


class ListenError(OSError):
    """An address cannot be listened to; the message says what to do."""


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Close listeners and connections."""
        self.should_exit = self.force_exit = True
        self._ended.set()

    async def main_loop(self) -> None:
        """Wait for the end: uvicorn looks ten times a second, at a date and a count of requests that nobody asked it for."""
        await self._ended.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to ``serve_until``."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """Bind before anything else is started, so that a taken port ends the command with a clear error. Raises ListenError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named: asyncio sets TCP_NODELAY only then
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise ListenError(
            f"cannot listen on {host}:{port}: {error.strerror or error}. Choose another address or port."
        ) from error
    sock.setblocking(False)
    return sock


def server_config(
    app: Callable[..., Awaitable[Any]], rules: Callable[[], ConnectionRules], tunnels: Tunnels | None = None
) -> uvicorn.Config:
    """How both ports are served; ``tunnels`` say where WebSockets go, None: nowhere."""
    return uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", partial(BoundedHttpProtocol, rules)),
        ws="none" if tunnels is None else cast("type[asyncio.Protocol]", partial(WebSocketTunnel, tunnels)),
        lifespan="off",
        access_log=False,
        proxy_headers=False,  # who called is who connected: X-Forwarded-For is for anybody to write
        server_header=False,
        date_header=False,
        log_config=None,
        timeout_keep_alive=75,  # above the 60 s that load balancers keep a connection idle
    )


async def serve_until(
    main: Any, admin: Any, sockets: list[socket.socket], drain: Drain, rules: Callable[[], ConnectionRules], tunnels: Tunnels,
    alive: int | None = None,
) -> None:  # fmt: skip
    """Serve both applications until SIGTERM or SIGINT, then drain; a second signal ends at once.

    SIGINT comes from somebody at a terminal, not from a load balancer's owner: it refuses new requests from the start. ``alive`` is the
    reading end of a pipe that the parent process holds: its end counts as SIGTERM.
    """
    servers = [_Server(server_config(main, rules, tunnels)), _Server(server_config(admin, rules))]
    running = [asyncio.create_task(server.serve([sock])) for server, sock in zip(servers, sockets, strict=True)]
    told, again = asyncio.Event(), asyncio.Event()
    signals: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        signals.append(number)
        (again if told.is_set() else told).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    if alive is not None:
        parent = alive

        def on_end() -> None:
            loop.remove_reader(parent)
            on_signal(signal.SIGTERM)

        loop.add_reader(parent, on_end)
    stop = asyncio.create_task(told.wait())
    await asyncio.wait([stop, *running], return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    draining = asyncio.create_task(drain.run(at_once=signal.SIGINT in signals))
    hurry = asyncio.create_task(again.wait())
    await asyncio.wait([draining, hurry], return_when=asyncio.FIRST_COMPLETED)
    for task in (draining, hurry):
        task.cancel()
    for server in servers:
        server.end()
    await asyncio.gather(*running)
