"""One kvgate before one mock replica, a crowd of clients that changes while it runs, and a Prometheus with the shipped rules."""

import asyncio
import random
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import yaml

from proxy.adapters.upstream import HttpUpstream
from proxy.bench.processes import Programs, free_ports, until_ready
from proxy.sim.mock_text import TOKENIZER_DIRECTORY
from tests.bench.load import new_upstream, send
from tests.bench.loads import as_request, chat, distinct_words
from tests.observability.prometheus_process import Prometheus, config_for, start_prometheus
from tests.observability.shipped import PROMETHEUS

KV_BLOCKS = 257  # of 16 tokens, one of them the null block: 4,096 tokens
SPEED = 4
TOKEN = "on-call-walks-token"
WAIT_S_MAX = 150.0
# What runbooks ask over five minutes is asked over this: a walk is played in one.
WINDOW = "20s"


class Crowd:
    """Closed-loop clients: each sends its next request when its last one ended."""

    def __init__(self, upstream: HttpUpstream, url: str) -> None:
        self._upstream = upstream
        self._url = url
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, clients: int, tenant: str, *, prompt_words: int, output_tokens: int) -> None:
        """Start so many."""
        for number in range(clients):
            name = f"{tenant} {number} {prompt_words}"
            self._tasks.append(asyncio.create_task(self._client(tenant, random.Random(name), prompt_words, output_tokens)))

    async def _client(self, tenant: str, rng: random.Random, words: int, tokens: int) -> None:
        while True:
            target, fields = chat("mock", distinct_words(rng, words), max_tokens=tokens, ignore_eos=True)
            request = replace(as_request(target, fields), headers=((b"x-kvgate-tenant", tenant.encode()),))
            if (await send(self._upstream, self._url, request)).status != 200:
                await asyncio.sleep(0.5)  # a client that heeds a refusal, in the walk's own time

    async def leave(self) -> None:
        """End them all, their requests too."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()


@dataclass(frozen=True, slots=True)
class OnCall:
    """What whoever is on call has: Prometheus, the admin port, the policy's file; and the crowd, which they have not."""

    prometheus: Prometheus
    admin: httpx.AsyncClient
    policy: Path
    token_file: Path
    crowd: Crowd

    async def value(self, query: str) -> float:
        """Ask a query of the runbook, over the walk's window."""
        return await self.prometheus.value(query.replace("[5m]", f"[{WINDOW}]"))

    async def series(self, query: str) -> dict[str, float]:
        """Likewise, for one that returns several: values by their labels' values."""
        found = await self.prometheus.query(query.replace("[5m]", f"[{WINDOW}]"))
        return {
            " ".join(value for key, value in sorted(one["metric"].items()) if key not in ("__name__", "job", "instance")): float(
                one["value"][1]
            )
            for one in found
        }

    async def until(self, query: str, what: str) -> None:
        """Wait until a query returns something."""
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                while not await self.prometheus.query(query.replace("[5m]", f"[{WINDOW}]")):  # noqa: ASYNC110
                    await asyncio.sleep(0.5)  # the next scrape
        except TimeoutError:
            raise AssertionError(f"{what} did not come about: {query}") from None

    async def fires(self, alert: str) -> None:
        """Wait until an alert does."""
        await self.until(f'ALERTS{{alertname="{alert}", alertstate="firing"}}', alert)

    async def requests(self, **asked: str) -> list[dict[str, Any]]:
        """Ask the admin port for requests, the newest first."""
        found: list[dict[str, Any]] = (await self.admin.get("/admin/requests", params=asked)).json()["requests"]
        return found

    async def command(self, *words: str) -> None:
        """Run a kvgate command against the admin port."""
        flags = ["--admin", str(self.admin.base_url), "--admin-token-file", str(self.token_file)]
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "proxy", *words, *flags)
        assert await process.wait() == 0, words


def queries_of(alert: str) -> list[str]:
    """Return the queries that a runbook names, in their order."""
    text = (PROMETHEUS / "README.md").read_text("utf-8")
    paragraph = re.search(rf"(?ms)^### {alert}\n\n(.+?)(?=^##|\Z)", text)
    assert paragraph, alert
    return [code for code in re.findall(r"`([^`]+)`", paragraph[1]) if re.search(r"kvgate_.*[=>)]|:kvgate_", code)]


@asynccontextmanager
async def on_call(folder: Path, policy: dict[str, Any]) -> AsyncIterator[OnCall]:
    """Run it until the block ends."""
    mock_port, port, admin_port = free_ports(3)
    mock_url, url, admin_url = (f"http://127.0.0.1:{one}" for one in (mock_port, port, admin_port))
    path, token_file = folder / "policy.yaml", folder / "token"
    path.write_text(yaml.safe_dump(policy), encoding="utf-8")
    token_file.write_text(TOKEN, encoding="utf-8")
    upstream = new_upstream()
    async with Programs() as programs:
        words = ["mock-vllm", "--port", str(mock_port), "--num-gpu-blocks", str(KV_BLOCKS), "--max-model-len", "2048"]
        mock = await programs.start("mock-vllm", [*words, "--speed", str(SPEED)])
        await until_ready(mock, upstream, mock_url, path=b"/health")
        words = ["serve", "--replica", mock_url, "--policy", str(path), "--tokenizer", str(TOKENIZER_DIRECTORY)]
        words += ["--admin-token-file", str(token_file), "--log-level", "warning"]
        kvgate = await programs.start("kvgate", [*words, "--port", str(port), "--admin-port", str(admin_port)])
        await until_ready(kvgate, upstream, url)
        address = await start_prometheus(programs, folder, config_for({"kvgate": [f"127.0.0.1:{admin_port}"]}, folder))
        crowd = Crowd(upstream, url)
        async with (
            httpx.AsyncClient(base_url=address, timeout=30) as http,
            httpx.AsyncClient(base_url=admin_url, timeout=30) as admin,
        ):
            try:
                yield OnCall(Prometheus(http), admin, path, token_file, crowd)
            finally:
                await crowd.leave()
    await upstream.aclose()
