"""kvgate as ``proxy.app`` puts it together, on real sockets in the test's own event loop, so that faults can be planted in its parts."""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy import app
from proxy.adapters.memory_store import MemoryStore
from proxy.app.building import build_services
from proxy.config.redis_url import store_address
from proxy.config.settings import ServeSettings, effective_policy
from proxy.core.replica import ReplicaPhase
from proxy.ports.record import RequestRecord
from proxy.serving.admin import admin_app
from proxy.serving.endpoints import Endpoints
from proxy.serving.services import Services
from proxy.serving.sharing import Sharing
from proxy.sim.mock_text import TOKENIZER_DIRECTORY
from tests.integration.mock_harness import RunningMock
from tests.support.upstream_servers import Peer, asgi_server, dechunk

MESSAGES = [{"role": "user", "content": "Tell me about the river."}]
FAST_SCRAPES = {"scrape": {"interval": "50ms", "timeout": "2s", "stale": "5s"}}


async def until(condition: Callable[[], object], what: str = "the condition", seconds: float = 15.0) -> None:
    """Wait for something that has no event."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"{what} did not come about within {seconds} s")


class ShiftedClock:
    """The machine's clock, and as much later as a test says."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_s(self) -> float:
        return time.monotonic() + self.ahead_s

    def wall_s(self) -> float:
        return time.time()


@dataclass(frozen=True, slots=True)
class Reply:
    """A response as it stood on the wire."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool = True  # False: cut off in the middle

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """Parsed events of a stream, without the end mark, which must be there."""
        lines = self.body.decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""], self
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


@dataclass(slots=True)
class Exchange:
    """A request that was sent; the answer is the caller's to read, or to leave."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def reply(self) -> Reply:
        """Read to the end."""
        async with asyncio.timeout(30):
            raw = await self.reader.read()
        await self.leave()
        head, _, rest = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        whole = True
        if headers.get("transfer-encoding") == "chunked":
            rest, whole = dechunk(rest)
        return Reply(int(first.split()[1]), headers, rest, whole)

    async def leave(self) -> None:
        """Close the connection, whatever is still to come."""
        self.writer.transport.abort()


@dataclass(frozen=True, slots=True)
class Wire:
    """A bare HTTP client: one connection a request."""

    port: int

    async def open(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, *, length: int | None = None
    ) -> Exchange:
        """Send a request. ``length`` announces another body length than that of ``body``."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        fields = {"host": f"127.0.0.1:{self.port}", "connection": "close", "content-type": "application/json"} | dict(
            headers or {}
        )
        fields["content-length"] = str(len(body) if length is None else length)
        head = "\r\n".join(
            [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items() if value), "", ""]
        )
        writer.write(head.encode("latin-1") + body)
        return Exchange(reader, writer)

    async def request(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Reply:
        return await (await self.open(method, path, body, headers)).reply()

    async def start_chat(self, headers: Mapping[str, str] | None = None, **fields: Any) -> Exchange:
        """Send a chat call."""
        return await self.open("POST", "/v1/chat/completions", json.dumps({"messages": MESSAGES} | fields).encode(), headers)

    async def chat(self, headers: Mapping[str, str] | None = None, **fields: Any) -> Reply:
        return await (await self.start_chat(headers, **fields)).reply()

    async def complete(self, headers: Mapping[str, str] | None = None, **fields: Any) -> Reply:
        return await self.request("POST", "/v1/completions", json.dumps(fields).encode(), headers)


@dataclass(slots=True)
class RunningProxy:
    """kvgate in this event loop."""

    services: Services
    endpoints: Endpoints
    wire: Wire
    told: list[RequestRecord] = field(default_factory=list)

    @property
    def records(self) -> list[RequestRecord]:
        """Of all requests that ended until now."""
        self.services.ended.tell()
        return self.told

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.wire.port}/v1"

    @property
    def store(self) -> MemoryStore:
        store = self.services.dispatcher._store
        assert isinstance(store, MemoryStore)
        return store

    @property
    def sharing(self) -> Sharing:
        assert self.services.exchange is not None
        return self.services.exchange.sharing

    @property
    def metrics(self) -> str:
        self.services.ended.tell()
        return b"".join(self.services.telemetry.exposition_parts()).decode()

    def metric(self, series: str) -> float:
        """Value of a series as it is written; zero where it is not there yet."""
        return next((float(line.rpartition(" ")[2]) for line in self.metrics.splitlines() if line.startswith(series + " ")), 0.0)

    def idle(self) -> bool:
        """Whether nothing of any request is left in the proxy."""
        leases = self.services.dispatcher.gate.leases
        return (
            repr(self.services.dispatcher).startswith("<Dispatcher waiting=0 open=0 ")
            and not len(self.services.dispatcher.gate.queue)
            and not self.services.dispatcher._store.leases_held()
            and leases.started == leases.ended
            and not self.services.body_bytes_held
            and not self.services.drain.under_way
            and not sum(self.services.outstanding._count.values())
        )

    async def until_idle(self, *mocks: RunningMock) -> None:
        """Nothing may be left anywhere: places, leases, bytes, tasks, and the replicas' own requests."""
        await until(self.idle, f"an idle proxy (now {self.services.dispatcher!r})")
        for mock in mocks:
            await mock.until_idle()

    async def until_serving(self, count: int = 1) -> None:
        ready = lambda: len(self.services.serving()) == count and not self.services.loading()  # noqa: E731
        await until(ready, f"{count} serving replica(s)")


@asynccontextmanager
async def proxying(
    *urls: str, policy: Mapping[str, Any] | None = None, probed: bool = True, tokenizer: bool = True, kv_blocks: int | None = None,
    redis_url: str | None = None,
) -> AsyncIterator[RunningProxy]:  # fmt: skip
    """Serve until the block ends. ``policy`` is what a policy file says; ``probed`` waits until every replica was found; ``redis_url`` is
    the store that it shares with others.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.yaml"
        path.write_text(yaml.safe_dump(FAST_SCRAPES | dict(policy or {})), encoding="utf-8")
        settings = ServeSettings(
            replica_urls=urls, policy_path=path, tokenizer=str(TOKENIZER_DIRECTORY) if tokenizer else None, kv_blocks=kv_blocks
        )
        chosen = effective_policy(settings)
    store = None if redis_url is None else app.redis_store(store_address(redis_url), chosen.store)
    services = build_services(chosen, store, settings=settings)
    records: list[RequestRecord] = []
    _keep_records(services, records)
    services.replicas.start()
    watching = [
        asyncio.create_task(services.switches.run()),
        asyncio.create_task(services.history.run()),
        asyncio.create_task(services.ring.run()),
    ]
    if services.exchange is not None:
        watching += [asyncio.create_task(services.exchange.sharing.run()), asyncio.create_task(services.exchange.run())]
    if probed:
        for watcher in services.watchers.values():
            await asyncio.wait_for(watcher.found.wait(), 10)
    await until(lambda: not services.loading(), "the tokenizers")
    endpoints = Endpoints(services)
    try:
        async with asgi_server(endpoints, ours=True) as port:
            yield RunningProxy(services, endpoints, Wire(port), records)
    finally:
        died = [task for task in (*watching, *services.replicas.tasks) if task.done()]
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        if services.exchange is not None and store is not None:
            await services.exchange.sharing.leave()
            await store.aclose()
        services.dispatcher.close()
        await services.counter.aclose()
        await services.replicas.aclose()
        await services.upstream.aclose()
    assert not died, f"a watcher died: {died}"


def _keep_records(services: Services, records: list[RequestRecord]) -> None:
    told = services.telemetry.request_finished

    def tell(record: RequestRecord) -> None:
        records.append(record)
        told(record)

    services.telemetry.request_finished = tell  # type: ignore[method-assign]


@asynccontextmanager
async def admin_of(proxy: RunningProxy) -> AsyncIterator[Wire]:
    """The inside port."""
    async with asgi_server(admin_app(proxy.services, proxy.endpoints)) as port:
        yield Wire(port)


def url_of(mock: RunningMock) -> str:
    return f"http://127.0.0.1:{mock.port}"


def phases(proxy: RunningProxy) -> list[ReplicaPhase]:
    return [watcher.phase for watcher in proxy.services.watchers.values()]


async def answer_like_vllm(peer: Peer, head: bytes) -> None:
    """Answer a probe as a server does that tells its models and nothing else."""
    body, kind, status = b"", b"application/json", b"404 Not Found"
    if b"GET /health " in head:
        status = b"200 OK"
    elif b"GET /v1/models " in head:
        status, body = b"200 OK", json.dumps({"object": "list", "data": [{"id": "mock", "max_model_len": 4096}]}).encode()
    await peer.send(
        b"HTTP/1.1 %b\r\ncontent-type: %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (status, kind, len(body), body)
    )
