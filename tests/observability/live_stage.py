"""Two kvgates that share a Redis before two mock replicas, under a load that meets every rule, and a Prometheus that scrapes them."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import yaml

from proxy.adapters.upstream import HttpUpstream
from proxy.bench.processes import Programs, free_ports, until_ready
from proxy.sim.mock_text import TOKENIZER_DIRECTORY
from tests.bench.load import new_upstream, send
from tests.bench.loads import as_request, chat, distinct_words
from tests.observability.prometheus_process import Prometheus, config_for, start_prometheus
from tests.support.redis_server import redis_server

CLIENTS = 24
TENANTS = ("acme", "zoo", "loud")
# Small bounds, so that a small load meets them all.
POLICY = {
    "queue": {"requests_max": 6, "wait_max": "1s"},
    "classes": [
        {"name": "batch", "match": {"headers": {"x-class": "batch"}}, "priority": -10, "ttft": "1ms", "tpot": "100us"},
        {
            "name": "chat",
            "ttft": "30s",
            "tpot": "1s",
            "when_saturated": ["degrade", "queue", "shed"],
            "degrade": {"max_tokens_min": 16},
        },
    ],
    "tenants": {
        "from": "header",
        "others": {"kv_share_max": 0.6},
        "list": {"loud": {"requests_per_s": 2, "burst": "2s", "kv_share_max": 0.5}},
    },
    "relay": {"drain_accept": "0s", "grace": "1s"},
}


@dataclass(frozen=True, slots=True)
class Stage:
    """What runs."""

    prometheus: Prometheus
    admins: tuple[str, ...]
    replicas: tuple[str, ...]


def write_policy(folder: Path, replicas: list[str]) -> Path:
    """Write the policy, and beside it the file that it finds the replicas in."""
    found, path = folder / "replicas.yaml", folder / "policy.yaml"
    found.write_text(yaml.safe_dump({"replicas": replicas}), encoding="utf-8")
    path.write_text(
        yaml.safe_dump(POLICY | {"discovery": {"file": str(found), "replica": {"max_num_seqs": 64}}}), encoding="utf-8"
    )
    return path


async def keep_loading(upstream: HttpUpstream, urls: list[str], replicas: list[str]) -> None:
    """Send until cancelled: tenants and classes in turn, half of the prompts with a beginning in common, one client past kvgate."""
    rng = random.Random(7)
    shared = distinct_words(rng, 120)

    async def client(number: int) -> None:
        refused = False
        for turn in itertools.count():
            words = f"{shared} {turn % 5}" if number % 2 else distinct_words(rng, 150)
            target, fields = chat("mock", words, max_tokens=60 + 20 * (number % 4), ignore_eos=True)
            headers = [(b"x-kvgate-tenant", TENANTS[number % 3].encode())]
            headers += [(b"x-class", b"batch")] if number % 4 == 0 else []
            headers += [(b"x-stainless-retry-count", b"1")] if refused else []
            base = replicas[turn % 2] if number == 0 else urls[(number + turn) % 2]
            record = await send(upstream, base, replace(as_request(target, fields), headers=tuple(headers)))
            refused = record.status != 200
            if refused:
                await asyncio.sleep(0.1)  # what is refused at once would fill the processor

    async with asyncio.TaskGroup() as tasks:
        for number in range(CLIENTS):
            tasks.create_task(client(number))


@asynccontextmanager
async def live_stage(folder: Path) -> AsyncIterator[Stage]:
    """Run it all until the block ends, the load included."""
    mocks, ports, admins = free_ports(2), free_ports(2), free_ports(2)
    replicas, urls = [f"http://127.0.0.1:{port}" for port in mocks], [f"http://127.0.0.1:{port}" for port in ports]
    upstream = new_upstream()
    with redis_server() as redis:
        async with Programs() as programs:
            for port in mocks:
                words = ["mock-vllm", "--port", str(port), "--num-gpu-blocks", "81", "--max-model-len", "1024", "--speed", "2"]
                await until_ready(await programs.start("mock-vllm", words), upstream, f"http://127.0.0.1:{port}", path=b"/health")
            words = ["serve", "--policy", str(write_policy(folder, replicas)), "--tokenizer", str(TOKENIZER_DIRECTORY)]
            words += ["--redis", redis.url, "--log-level", "warning"]
            for port, admin, url in zip(ports, admins, urls, strict=True):
                flags = ["--port", str(port), "--admin-port", str(admin)]
                await until_ready(await programs.start("kvgate", [*words, *flags]), upstream, url)
            targets = {"kvgate": [f"127.0.0.1:{admin}" for admin in admins]}
            address = await start_prometheus(programs, folder, config_for(targets, folder))
            load = asyncio.create_task(keep_loading(upstream, urls, replicas))
            async with httpx.AsyncClient(base_url=address, timeout=30.0) as client:
                try:
                    yield Stage(Prometheus(client), tuple(f"http://127.0.0.1:{admin}" for admin in admins), tuple(replicas))
                finally:
                    load.cancel()
                    await asyncio.gather(load, return_exceptions=True)
    await upstream.aclose()
