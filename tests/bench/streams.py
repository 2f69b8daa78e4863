"""Thousands of open streams on one kvgate: what each holds in memory, and what somebody new meets meanwhile (Linux).

    python -m tests.bench.streams --open 1000 10000

Engine and clients are plain asyncio protocols (``relay_load``) in other processes than kvgate, so that its memory is its own. Each stream
has a prompt of 2 KB, gets its first event at once, and is then silent. At every number, when all have had it:

- *memory*: private memory (USS) of kvgate's process above that before the first stream, over the number of streams; what the kernel holds
  for the sockets is not in it;
- *new requests*: ``PROBES`` plain ones and as many streams, one at a time, from sending to the first byte of the body;
- *admin port*: how long each of its pages takes.

At the end the engine ends all streams: each must come whole to its end, and leases, descriptors and tasks must go back. Exit status 1 when
one was lost, refused or cut off, or something stays.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvloop

from proxy.bench.processes import free_ports
from proxy.sim.mock_text import TOKENIZER_DIRECTORY
from tests.bench.left_over import metric
from tests.bench.shared_processes import Child
from tests.bench.soak_hour_look import read_process
from tests.bench.streams_load import Opening, run_holding_engine, until

WARM_REQUESTS = 200
PROBES = 50
SETTLE_S = 3.0
PAGES = ("/health", "/ready", "/admin/state", "/admin/replicas", "/metrics")
POLICY = "limits: {{connections_max: {connections}}}\nrelay: {{drain_accept: 0s, grace: 5s}}\n"
FDS_SPARE = 8
FDS_PER_STREAM, FDS_BESIDE = 2, 150  # in kvgate, a client's and a replica's


@dataclass(frozen=True, slots=True)
class Held:
    """With so many open. Milliseconds; kilobytes of 1,024."""

    streams: int
    uss_mb: float
    rss_mb: float
    kb_per_stream: float
    opened_per_s: float
    fds: int
    tasks: int
    cpu_s_per_stream: float
    first_token_ms: dict[str, float]
    plain_ms: dict[str, float]
    admin_ms: dict[str, float]


@dataclass(slots=True)
class Result:
    """A run; ``faults`` is empty where it holds."""

    rows: list[Held] = field(default_factory=list)
    ended: int = 0
    after: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


async def hold(client: httpx.AsyncClient, opening: Opening, pid: int, admin: str, streams: int, before_mb: float) -> Held:
    """Open so many and measure."""
    loop, already, spent_s = asyncio.get_running_loop(), len(opening.links), read_process(pid).cpu_s
    began_s = loop.time()
    await opening.open(streams)
    took_s, more = loop.time() - began_s, max(1, streams - already)
    spent_s = read_process(pid).cpu_s - spent_s
    await asyncio.sleep(SETTLE_S)
    process = read_process(pid)
    pages = {}
    for page in PAGES:
        at_s = time.perf_counter()
        answer = await client.get(f"{admin}{page}")
        pages[page] = 1e3 * (time.perf_counter() - at_s)
        answer.raise_for_status()
    tasks = metric(answer.text, "kvgate_process_tasks")
    return Held(
        streams, process.uss_mb, process.rss_mb, 1024.0 * (process.uss_mb - before_mb) / streams, more / took_s, process.fds,
        int(tasks), spent_s / more, await opening.probe(20, PROBES), await opening.probe(0, PROBES), pages,
    )  # fmt: skip


async def run_streams(port: int, admin: str, engine: str, pid: int, numbers: Sequence[int]) -> Result:
    """Everything, on a kvgate that is up."""
    result, opening = Result(), Opening(port)
    async with httpx.AsyncClient(timeout=60.0) as client:
        await opening.probe(0, WARM_REQUESTS)
        await opening.probe(20, WARM_REQUESTS)
        await asyncio.sleep(SETTLE_S)
        before = read_process(pid)
        tasks_before = metric((await client.get(f"{admin}/metrics")).text, "kvgate_process_tasks")
        for number in sorted(numbers):
            result.rows.append(await hold(client, opening, pid, admin, number, before.uss_mb))
            sys.stderr.write(f"{result.rows[-1]}\n")
        await client.get(f"{engine}/release")
        with suppress(TimeoutError):  # it shows in how many did
            await until(lambda: opening.seen.done >= len(opening.links), 0.1)
        result.ended, opening.seen.over = opening.seen.done, True
        for transport in opening.links:
            transport.abort()
        await asyncio.sleep(2 * SETTLE_S)
        metrics, process = (await client.get(f"{admin}/metrics")).text, read_process(pid)
        result.after = {
            "open requests": metric(metrics, "kvgate_open_requests"),
            "faults inside": metric(metrics, "kvgate_internal_errors_total"),
            "tasks more": max(0.0, metric(metrics, "kvgate_process_tasks") - tasks_before),
            "descriptors more": float(max(0, process.fds - before.fds - FDS_SPARE)),
        }
        result.after |= {"USS, MB": process.uss_mb, "USS before, MB": before.uss_mb}
    seen = opening.seen
    result.faults = [f"{name}: {value:g}" for name, value in result.after.items() if value and not name.startswith("USS")]
    result.faults += [f"{seen.lost} lost, {seen.failed} refused"] if seen.lost or seen.failed else []
    result.faults += [] if result.ended == len(opening.links) else [f"{result.ended} of {len(opening.links)} came to their end"]
    return result


async def run(folder: Path, numbers: Sequence[int], startup: str = "") -> Result:
    """Start engine and kvgate, and measure. ``startup``: Python that kvgate runs first."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    engine = f"http://127.0.0.1:{listener.getsockname()[1]}"
    process = multiprocessing.get_context("fork").Process(target=run_holding_engine, args=(listener,), daemon=True)
    process.start()
    policy, (port, admin_port) = folder / "policy.yaml", free_ports(2)
    policy.write_text(POLICY.format(connections=2 * max(numbers)), "utf-8")
    if startup:
        (folder / "sitecustomize.py").write_text(startup, "utf-8")
    command = [
        sys.executable, "-m", "proxy", "serve", "--replica", engine, "--policy", str(policy), "--tokenizer", str(TOKENIZER_DIRECTORY),
        "--port", str(port), "--admin-port", str(admin_port), "--log-level", "warning",
    ]  # fmt: skip
    paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    kvgate, admin = Child("kvgate", command, folder, {"PYTHONPATH": paths}), f"http://127.0.0.1:{admin_port}"
    try:
        kvgate.start()
        await kvgate.until(f"{admin}/ready")
        return await run_streams(port, admin, engine, kvgate.pid, numbers)
    finally:
        kvgate.kill()
        process.kill()
        process.join()
        listener.close()


def lines(result: Result) -> list[str]:
    """For people."""
    told = [
        "| open | KB each | USS, MB | opened/s | CPU each, ms | tasks | first token beside p50, max, ms | plain p50, max, ms | admin, ms |",
        "| --- " * 9 + "|",
    ]
    for row in result.rows:
        page = max(row.admin_ms, key=lambda name: row.admin_ms[name])
        told.append(
            f"| {row.streams:,} | {row.kb_per_stream:.1f} | {row.uss_mb:.0f} | {row.opened_per_s:.0f} | {1e3 * row.cpu_s_per_stream:.2f} | "
            f"{row.tasks} | {row.first_token_ms['p50']:.1f}, {row.first_token_ms['max']:.1f} | {row.plain_ms['p50']:.1f}, "
            f"{row.plain_ms['max']:.1f} | {page} {row.admin_ms[page]:.0f} |"
        )
    told += [
        f"{result.ended:,} streams came to their end; afterwards: {result.after}",
        *(f"FAULT {fault}" for fault in result.faults),
    ]
    return [*told, "verdict: " + ("FAILED" if result.faults else "held")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--open", type=int, nargs="+", default=[1000, 10_000], metavar="N", help="streams (default: 1000 10000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every figure goes there")
    parser.add_argument("--startup", type=Path, metavar="FILE", help="Python that kvgate runs first, to look inside")
    options = parser.parse_args(argv)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if (wanted := FDS_PER_STREAM * max(options.open) + FDS_BESIDE) > most:
        parser.error(f"{max(options.open)} streams need {wanted} descriptors; this machine allows {most} (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        result: Any = uvloop.run(run(Path(folder), options.open, options.startup.read_text() if options.startup else ""))
    sys.stdout.write("\n".join(lines(result)) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(result), indent=1), encoding="utf-8")
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
