"""A mock vLLM on a real socket, in the test's own event loop, and a bare HTTP client that shows exactly what came."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from proxy.sim.engine_requests import EngineSettings
from proxy.sim.mock_server import MockServer, MockSettings
from proxy.sim.step_time import StepTimeModel

FAST = StepTimeModel(speed=1000)


def settings(*, engine: dict[str, Any] | None = None, **changes: Any) -> MockSettings:
    defaults: dict[str, Any] = {"num_gpu_blocks": 512, "block_size": 16, "max_model_len": 4096}
    return MockSettings(**{"engine": EngineSettings(**{**defaults, **(engine or {})}), "step_time": FAST, **changes})


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: str

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """Parsed chunks of a stream, without the end mark, which must be there."""
        lines = self.body.split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


@dataclass(frozen=True, slots=True)
class RunningMock:
    server: MockServer
    port: int

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def open(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request; the answer is the caller's to read."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        lines = [f"{method} {path} HTTP/1.1", "host: mock", "connection: close", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        return reader, writer

    async def request(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        reader, writer = await self.open(method, path, body, headers)
        async with asyncio.timeout(20):
            raw = await reader.read()
        writer.close()
        await writer.wait_closed()
        head, _, rest = raw.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        shown = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if shown.get("transfer-encoding") == "chunked":
            rest = _dechunked(rest)
        return Answer(int(status.split()[1]), shown, rest.decode())

    async def post(self, path: str, **body: Any) -> Answer:
        return await self.request("POST", path, json.dumps(body).encode(), {"content-type": "application/json"})

    async def chat(self, content: str = "Hello there", **changes: Any) -> Answer:
        return await self.post("/v1/chat/completions", messages=[{"role": "user", "content": content}], **changes)

    async def until_idle(self) -> None:
        """Wait until every engine has published that it is empty."""
        async with asyncio.timeout(10):
            while any(  # noqa: ASYNC110 - the engine has no event for it
                engine.engine.has_work or engine.published.gauges.running for engine in self.server.pool.engines
            ):
                await asyncio.sleep(0.005)


def _dechunked(raw: bytes) -> bytes:
    parts = []
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        length = int(size, 16)
        parts.append(raw[:length])
        raw = raw[length + 2 :]
    return b"".join(parts)


@asynccontextmanager
async def running(chosen: MockSettings) -> AsyncIterator[RunningMock]:
    """Serve until the block ends."""
    app = MockServer(chosen)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", ws="none"))
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(10):
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)
    try:
        yield RunningMock(app, server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        await task
