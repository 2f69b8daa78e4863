"""A recorded run on real HTTP against its replay: who was refused, who had to wait and for how long.

Starts ``kvgate mock-vllm`` and ``kvgate serve`` as processes, records both under an open loop of ``kvgate bench``, and plays the recording
in the simulator, ``PHASES`` times, each with scrapes at another moment: at the edge of a deadline a small difference decides who is
refused, so one replay is one draw. What is told of the replays is their median, least and most.

``python -m tests.bench.recorded_replay --rate 6 --seconds 120``; with ``--before 60`` the recording begins in the middle of the load;
``--file R.jsonl`` takes one that is there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import httpx

from proxy.bench.processes import free_ports
from proxy.cli.simulate import _recorded as engines_recorded
from proxy.sim.admission import GateAdmission
from proxy.sim.figures import figures_of
from proxy.sim.replay import recorded_figures, replayed_figures
from proxy.sim.scenario import KVGATE, Scenario
from proxy.sim.sim_request import SimRequest
from proxy.sim.world import Source, World

PHASES = 7
SCRAPE_S = 0.5
TOKEN = "of-a-benchmark-only"
BOUNDS = {"shed": 0.05, "held": 0.05, "queue_wait_s_p50": 0.10, "queue_wait_s_p99": 0.10}


class Later:
    """The same requests, all so much later."""

    def __init__(self, source: Source, by_s: float) -> None:
        self._source, self._by_s = source, by_s

    def next_request(self, now_s: float) -> SimRequest | None:
        request = self._source.next_request(now_s)
        return None if request is None else replace(request, arrival_s=request.arrival_s + self._by_s)

    def follow_up(self, request: SimRequest, now_s: float) -> SimRequest | None:
        return self._source.follow_up(request, now_s)


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


def record(folder: Path, options: argparse.Namespace) -> Path:
    """Run it for real; return the recording."""
    engine, port, admin = free_ports(3)
    out = folder / "recorded.jsonl"
    urls = [f"http://127.0.0.1:{one}" for one in (engine, port, admin)]
    served = ("--replica", urls[0], "--host", "127.0.0.1", "--port", str(port), "--admin-port", str(admin))
    with command(
        folder, "mock-vllm", "--port", str(engine), "--num-gpu-blocks", str(options.kv_blocks), "--max-model-len", "4096"
    ):
        until_ready(urls[0] + "/health")
        with command(folder, "serve", *served):
            until_ready(urls[1] + "/ready")
            seconds = options.before + options.seconds
            load = ("--workload", options.workload, "--rate", str(options.rate), "--duration", f"{seconds}s", "--natural")
            record_it = ("--out", str(out), "--for", f"{options.seconds + 5}s", "--admin", urls[2])
            with ExitStack() as running:
                if options.before:
                    bench = running.enter_context(command(folder, "bench", urls[1], *load, "--out", str(folder / "bench.json")))
                    time.sleep(options.before)
                recording = running.enter_context(command(folder, "record", *record_it))
                if not options.before:
                    time.sleep(1.0)
                    bench = running.enter_context(command(folder, "bench", urls[1], *load, "--out", str(folder / "bench.json")))
                bench.wait(seconds + 300)
                recording.wait(120)
    return out


def replays(path: Path) -> tuple[dict[str, float], dict[str, list[float]]]:
    """What was, and what each replay came to."""
    scenario = Scenario(workload=str(path), **engines_recorded(str(path)))
    assert scenario.replay is not None
    was = recorded_figures(scenario.replay)
    told: dict[str, float] = {"offered": float(was.offered or 0), "shed": float(was.shed or 0), **was.extra}
    found: dict[str, list[float]] = {name: [] for name in BOUNDS}
    for phase in range(PHASES):
        admission = scenario.admission(KVGATE)
        assert isinstance(admission, GateAdmission)
        world = World(scenario.settings(), admission, Later(scenario.clients(), SCRAPE_S * (phase + 0.5) / PHASES)).run()
        figures = replayed_figures(world, figures_of(world, scenario.targets), scenario.replay)
        for name, values in found.items():
            values.append(float(figures.shed or 0) if name == "shed" else figures.extra.get(name, 0.0))
    return told, found


def main(words: list[str]) -> int:
    """Print a table; 1 when the median of the replays is out of bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", default="chat")
    parser.add_argument("--rate", type=float, default=6.0)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--before", type=int, default=0, help="seconds of load before the recording begins (default: 0)")
    parser.add_argument("--kv-blocks", type=int, default=600)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        told, found = replays(options.file or record(Path(folder), options))
    sys.stdout.write(
        f"{told['offered']:.0f} requests\n{'':18} {'recorded':>9} {'replayed':>9} {'least':>9} {'most':>9} {'off':>7}\n"
    )
    reached = True
    for name, bound in BOUNDS.items():
        was, middle = told.get(name, 0.0), median(found[name])
        off = abs(middle - was) / max(was, 1e-9)
        reached = reached and off <= bound
        mark = "" if off <= bound else f"  beyond {bound:.0%}"
        sys.stdout.write(f"{name:18} {was:9.2f} {middle:9.2f} {min(found[name]):9.2f} {max(found[name]):9.2f} {off:7.1%}{mark}\n")
    if options.json:
        options.json.write_text(json.dumps({"recorded": told, "replayed": found}, indent=1), encoding="utf-8")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
