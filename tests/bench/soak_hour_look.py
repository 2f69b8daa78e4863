"""One look at a soaking kvgate: its memory, descriptors, threads and tasks, its ledger beside the engines, and how fast it was lately.

Memory is the kernel's word (``/proc/PID/smaps_rollup``), in MB of 2**20 bytes: *anonymous* is what the process itself has written and
keeps, in memory or swapped out; *USS* is what would be free if it ended, *PSS* has its share of what it shares with others, *RSS* all that
is mapped. These three move by some megabytes when another process begins or ceases to map the same libraries; the first does not.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.bench.engine import EngineState, read_state
from tests.bench.left_over import metric
from tests.bench.load import Fate, Record, percentile
from tests.bench.soak_verdict import Comparison

KB_PER_MB = 1024.0


@dataclass(frozen=True, slots=True)
class Process:
    """What the kernel says of one process."""

    anonymous_mb: float
    uss_mb: float
    pss_mb: float
    rss_mb: float
    fds: int
    threads: int
    cpu_s: float


def read_process(pid: int) -> Process:
    """Raises OSError when it has ended, or is not ours."""
    proc = Path(f"/proc/{pid}")
    kb = _numbers((proc / "smaps_rollup").read_text())
    stat = (proc / "stat").read_text().rpartition(")")[2].split()
    return Process(
        anonymous_mb=(kb["Anonymous"] + kb.get("Swap", 0.0)) / KB_PER_MB,
        uss_mb=(kb["Private_Clean"] + kb["Private_Dirty"]) / KB_PER_MB, pss_mb=kb["Pss"] / KB_PER_MB, rss_mb=kb["Rss"] / KB_PER_MB,
        fds=len(list((proc / "fd").iterdir())), threads=int(_numbers((proc / "status").read_text())["Threads"]),
        cpu_s=(int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"),
    )  # fmt: skip


def _numbers(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if (words := rest.split()) and words[0].isdecimal():
            found[name] = float(words[0])
    return found


@dataclass(frozen=True, slots=True)
class Look:
    """Everything at one moment; ``at_s`` since the load began. Times are of requests that ended since the look before."""

    at_s: float
    process: Process
    tasks: int
    open_requests: int
    compared: int  # comparisons of ledger and engine
    agreed: int  # those within a block per running request
    ended: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    e2e_p50_s: float | None
    e2e_p99_s: float | None
    machine_load: float

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


async def look(
    client: httpx.AsyncClient, pid: int, admin_url: str, engine_urls: Sequence[str], at_s: float, lately: Sequence[Record]
) -> Look:
    """Look once. A replica that is down is not compared."""
    process = read_process(pid)
    metrics = (await client.get(f"{admin_url}/metrics")).raise_for_status().text
    comparisons = await _comparisons(client, admin_url, engine_urls)
    done = [record for record in lately if record.fate is Fate.COMPLETED]
    ttfts = [record.first_s - record.sent_s for record in done if record.stream and record.first_s is not None]
    e2es = [record.end_s - record.sent_s for record in done]
    return Look(
        at_s, process, int(metric(metrics, "kvgate_process_tasks")), int(metric(metrics, "kvgate_open_requests")),
        len(comparisons), sum(one.held for one in comparisons), len(lately),
        percentile(ttfts, 0.5), percentile(ttfts, 0.99), percentile(e2es, 0.5), percentile(e2es, 0.99), os.getloadavg()[0],
    )  # fmt: skip


async def _comparisons(client: httpx.AsyncClient, admin_url: str, engine_urls: Sequence[str]) -> list[Comparison]:
    """Of every replica that answers: its own gauges between two looks at the ledger, as wide as both allow."""
    before = await _ledgers(client, admin_url)
    engines: list[EngineState | None] = []
    for url in engine_urls:
        try:
            engines.append(read_state((await client.get(f"{url}/metrics")).text))
        except (httpx.TransportError, KeyError):
            engines.append(None)  # being started
    after = await _ledgers(client, admin_url)
    found = []
    for engine, *sides in zip(engines, before, after, strict=True):
        if engine is None or any(side["phase"] != "serving" or "leases" not in side for side in sides):
            continue
        low = min(side["placed_blocks"] for side in sides)
        high = max(side["placed_blocks"] + side["unplaced_blocks"] for side in sides)
        prefilling = max(side["prefilling"] for side in sides)
        found.append(Comparison(0.0, engine.used_blocks, low, high, engine.running, engine.waiting, prefilling))
    return found


async def _ledgers(client: httpx.AsyncClient, admin_url: str) -> list[dict[str, Any]]:
    replicas = (await client.get(f"{admin_url}/admin/replicas")).raise_for_status().json()
    return sorted(replicas, key=lambda one: str(one["name"]))
