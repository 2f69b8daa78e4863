"""Makes the recordings that ``recorded_replay`` plays again: of processes on this machine, or in one loop of virtual time.

Both are kvgate's own recording of an open loop of ``kvgate bench`` before one mock replica, over real HTTP. In virtual time
(``tests.support.virtual_loop``) programs cost nothing and no machine lags: what its replay has otherwise is a fault of the model.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import httpx

from proxy.adapters.clock import SystemClock
from proxy.bench.plan import Shape
from proxy.bench.processes import free_ports
from proxy.bench.run import BenchSettings, bench
from proxy.bench.screen import Screen
from proxy.bench.sending import Course
from proxy.serving.recording import Tap
from proxy.sim.engine_requests import EngineSettings
from proxy.sim.mock_settings import MockSettings
from tests.integration.mock_harness import running
from tests.integration.serving.harness import proxying, url_of
from tests.support.virtual_loop import run_virtually

CONTEXT_TOKENS = 4096
DRAIN_S = 300.0
QUIET_S = 1.0  # between the beginnings of a recording and of the load
LATE_S = 5.0  # a recording goes on after the last request was sent
TOKEN = "of-a-benchmark-only"


@dataclass(frozen=True, slots=True)
class Run:
    """What is recorded: ``seconds`` of it, after ``before`` seconds of the same load."""

    workload: str = "chat"
    rate: float = 6.0
    seconds: int = 120
    before: int = 0
    kv_blocks: int = 600
    seed: int = 1


@contextmanager
def command(folder: Path, name: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A kvgate command until the block ends."""
    with (folder / f"{name}.log").open("wb") as log:
        environ = os.environ | {"KVGATE_ADMIN_TOKEN": TOKEN}
        process = subprocess.Popen([sys.executable, "-m", "proxy", name, *words], stdout=log, stderr=log, env=environ)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(60)


def until_ready(url: str) -> None:
    for _ in range(300):
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"{url} is not there")


def record(folder: Path, run: Run) -> Path:
    """Run it in processes; return the recording."""
    engine, port, admin = free_ports(3)
    out = folder / "recorded.jsonl"
    urls = [f"http://127.0.0.1:{one}" for one in (engine, port, admin)]
    served = ("--replica", urls[0], "--host", "127.0.0.1", "--port", str(port), "--admin-port", str(admin))
    mock = ("--port", str(engine), "--num-gpu-blocks", str(run.kv_blocks), "--max-model-len", str(CONTEXT_TOKENS))
    with command(folder, "mock-vllm", *mock):
        until_ready(urls[0] + "/health")
        with command(folder, "serve", *served):
            until_ready(urls[1] + "/ready")
            seconds = run.before + run.seconds
            load = ("--workload", run.workload, "--rate", str(run.rate), "--duration", f"{seconds}s", "--natural")
            load += ("--seed", str(run.seed), "--out", str(folder / "bench.json"))
            record_it = ("--out", str(out), "--for", f"{run.seconds + LATE_S:g}s", "--admin", urls[2])
            with ExitStack() as running_too:
                if run.before:
                    sending = running_too.enter_context(command(folder, "bench", urls[1], *load))
                    time.sleep(run.before)
                recording = running_too.enter_context(command(folder, "record", *record_it))
                if not run.before:
                    time.sleep(QUIET_S)
                    sending = running_too.enter_context(command(folder, "bench", urls[1], *load))
                sending.wait(seconds + DRAIN_S)
                recording.wait(120)
    return out


def record_virtually(folder: Path, run: Run) -> Path:
    """Run it in virtual time; return the recording."""
    out = folder / "recorded.jsonl"
    run_virtually(_recorded(run, out))
    return out


async def _recorded(run: Run, out: Path) -> None:
    engine = EngineSettings(num_gpu_blocks=run.kv_blocks, max_model_len=CONTEXT_TOKENS)
    mock_settings = MockSettings(engine=engine, seed=run.seed)
    async with running(mock_settings) as mock, proxying(url_of(mock), policy={"scrape": {"interval": "500ms"}}) as kvgate:
        course = Course(run.before + run.seconds, DRAIN_S, run.rate)
        shape = Shape(natural=True, seed=run.seed)
        asked = BenchSettings(kvgate.base_url.removesuffix("/v1"), run.workload, course, shape)
        sending = asyncio.create_task(_after(0.0 if run.before else QUIET_S, asked))
        await asyncio.sleep(run.before)
        with out.open("wb") as file:
            async for line in Tap(kvgate.services, run.seconds + LATE_S).lines():
                file.write(line)
        await sending


async def _after(seconds: float, asked: BenchSettings) -> None:
    await asyncio.sleep(seconds)
    await bench(asked, SystemClock(), Screen(StringIO()))
