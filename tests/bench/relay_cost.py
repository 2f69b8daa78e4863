"""What the relay alone costs: CPU per streamed chunk and per plain request, of the proxy's process only (Linux).

    python tests/bench/relay_cost.py [--streams 64] [--rate 50] [--seconds 4]

A back end that writes one event at a time, the relay under uvicorn (httptools, uvloop) and a client that drops what it reads run in
three processes. CPU is read from the kernel's per-thread accounting between two moments while all streams run. Absolute figures mean
little on a busy or virtual machine: compare two runs on the same one.
"""

import argparse
import asyncio
import multiprocessing
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from proxy.adapters.upstream import HttpUpstream
from proxy.ports import Clock
from proxy.serving.relay import Receive, Send, relay
from proxy.serving.relay_result import RelayHooks, RelayRequest

EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1764400000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" some words"},"logprobs":null,"finish_reason":null}],"token_ids":null}\n\n'
)
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
PLAIN = (
    b'{"id":"c","choices":[{"index":0,"message":{"content":"%b"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":9,"completion_tokens":9}}'
) % (b"words " * 80)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PLAIN_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(PLAIN), PLAIN)


class LoopClock:
    """The loop's time."""

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_s(self) -> float:
        return 0.0


class Backend(asyncio.Protocol):
    """``/stream`` starts a stream of ``rate`` events a second that never ends; anything else is answered at once."""

    def __init__(self, rate: float) -> None:
        self.period_s = 1 / rate

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.buffer.endswith(b"}"):
            return
        is_stream = self.buffer.startswith(b"POST /stream")
        self.buffer = b""
        self.transport.write(STREAM_HEAD if is_stream else PLAIN_ANSWER)
        if is_stream:
            self.loop = asyncio.get_running_loop()
            self.due_s = self.loop.time()
            self.emit()

    def emit(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(CHUNK)
            self.due_s += self.period_s
            self.loop.call_at(self.due_s, self.emit)


def run_backend(listener: socket.socket, rate: float) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Backend(rate), sock=listener)
        await server.serve_forever()

    uvloop.run(main())


def run_proxy(listener: socket.socket, base_url: str) -> None:
    clock: Clock = LoopClock()
    hooks = RelayHooks(on_progress=lambda _tokens: None)
    upstreams: list[HttpUpstream] = []

    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if not upstreams:
            upstreams.append(HttpUpstream())
        body, more = b"", True
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        request = RelayRequest(base_url, scope["method"].encode(), scope["raw_path"], scope["headers"], body)
        await relay(receive, send, upstreams[0], request, clock=clock, hooks=hooks)

    config = uvicorn.Config(app, http="httptools", loop="uvloop", lifespan="off", log_level="critical", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process so far."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def request(path: bytes) -> bytes:
    body = b'{"prompt":"%b"}' % (b"words " * 340)
    return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        path,
        len(body),
        body,
    )


async def measure_streams(port: int, pid: int, streams: int, seconds: float) -> str:
    chunks = 0

    async def one() -> None:
        nonlocal chunks
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"/stream"))
        while data := await reader.read(65536):
            chunks += data.count(b"data: ")

    tasks = [asyncio.create_task(one()) for _ in range(streams)]
    await asyncio.sleep(1)
    before, chunks = cpu_s(pid), 0
    await asyncio.sleep(seconds)
    used, seen = cpu_s(pid) - before, chunks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return f"streams: {seen / seconds:.0f} chunks/s, {used / max(seen, 1) * 1e6:.1f} us CPU per chunk\n"


async def measure_plain(port: int, pid: int, clients: int, seconds: float) -> str:
    done = 0
    message = request(b"/plain")

    async def one() -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            writer.write(message)
            await reader.readuntil(PLAIN)
            done += 1

    tasks = [asyncio.create_task(one()) for _ in range(clients)]
    await asyncio.sleep(0.5)
    before, done = cpu_s(pid), 0
    await asyncio.sleep(seconds)
    used, seen = cpu_s(pid) - before, done
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return f"plain: {seen / seconds:.0f} requests/s, {used / max(seen, 1) * 1e3:.4f} ms CPU per request\n"


def listening() -> tuple[socket.socket, int]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    return listener, listener.getsockname()[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=50.0, help="chunks per second and stream")
    parser.add_argument("--seconds", type=float, default=4.0)
    args = parser.parse_args()
    fork = multiprocessing.get_context("fork")
    back_socket, back_port = listening()
    front_socket, front_port = listening()
    backend = fork.Process(target=run_backend, args=(back_socket, args.rate), daemon=True)
    proxy = fork.Process(target=run_proxy, args=(front_socket, f"http://127.0.0.1:{back_port}"), daemon=True)
    try:
        backend.start()
        proxy.start()
        assert proxy.pid is not None
        sys.stdout.write(uvloop.run(measure_plain(front_port, proxy.pid, args.streams, args.seconds)))
        sys.stdout.write(uvloop.run(measure_streams(front_port, proxy.pid, args.streams, args.seconds)))
    finally:
        for process in (proxy, backend):
            if process.is_alive():
                process.kill()
                process.join()


if __name__ == "__main__":
    main()
