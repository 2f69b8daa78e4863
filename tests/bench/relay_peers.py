"""What kvgate's data path costs beside nginx and vllm-router: ratios of one run, into ``RELAY.md`` (Linux, two cores).

    python -m tests.bench.relay_peers [--rounds 3] [--seconds 3] [--tokenizer DIR] [--out FILE]

The proxy has core 0, engine and clients have core 1 (``relay_load``). Each round runs every row in turn, so that what disturbs the machine
disturbs all of them; medians over the rounds are told. nginx is used where it is installed (apt install nginx), vllm-router where
``VLLM_ROUTER`` or the PATH has it (pip install vllm-router); "relay alone" is kvgate's sockets without admission (``bare_relay``). CPU is
that of the proxy's processes alone, from the kernel's schedstat, in the window: it is the figure to trust on a machine that does other
things too, requests per second are not.
"""

import argparse
import asyncio
import compileall
import json
import multiprocessing
import os
import platform
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import uvloop

import proxy
from proxy.sim.mock_text import TOKENIZER_DIRECTORY
from tests.bench.relay_load import load, run_engine
from tests.support.processes import descendants_of

HERE = Path(__file__).parent
NOTES = "## Notes"
PLENTY_BLOCKS, SCARCE_BLOCKS = 1_000_001, 3_801  # scarce: 64 prompts fill more than half, so that each is counted
SCARCE_HOLD_S = 0.02  # they lie in the engine so long: what is answered at once is hardly ever there together
SETTLE_S, WARM_S = 6.0, 2.0  # the tokenizer is loaded and the first scrapes are in; lengths are learned
START_S_MAX = 120.0
NGINX = """worker_processes 1; daemon off; pid {d}/pid; error_log {d}/err warn; events {{ worker_connections 8192; }}
http {{ access_log off; client_body_buffer_size 1m; keepalive_requests 1000000; client_body_temp_path {d}/b; proxy_temp_path {d}/p;
fastcgi_temp_path {d}/f; uwsgi_temp_path {d}/u; scgi_temp_path {d}/s;
upstream b {{ server 127.0.0.1:{back}; keepalive 2048; keepalive_requests 1000000; }}
server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ proxy_pass http://b; proxy_http_version 1.1;
proxy_set_header Connection ""; proxy_buffering off; }} }} }}
"""


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of load, and the figures of it that are told."""

    title: str
    clients: int
    figures: tuple[str, ...]
    period_ms: int = 0  # between the events of a stream; 0: no stream
    rate_per_s: float | None = None
    scarce: bool = False


LOADS = {
    "open64": Load("64 open, plenty of KV", 64, ("requests_per_s", "cpu_us_per_request")),
    "scarce": Load("64 open, KV scarce: every prompt counted", 64, ("requests_per_s", "cpu_us_per_request", "counted_ratio"), scarce=True),
    "single": Load("one at a time", 1, ("p50_ms", "p99_ms")),
    "rate50": Load("50 requests/s", 16, ("p50_ms", "p99_ms", "cpu_us_per_request"), rate_per_s=50.0),
    "paced": Load("64 streams of 50 events/s", 64, ("chunks_per_s", "cpu_us_per_chunk", "first_of_burst_ms"), period_ms=20),
    "fast": Load(
        "64 streams of 500 events/s", 64, ("chunks_per_s", "cpu_us_per_chunk"), period_ms=2
    ),
}  # fmt: skip


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    return [pid, *descendants_of(pid)]


def cpu_s(pids: list[int]) -> float:
    """CPU seconds of all threads of these processes so far."""
    total = 0
    for pid in pids:
        with suppress(FileNotFoundError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def commands(folder: str, port: int, back: int, tokenizer: str) -> dict[str, str]:
    """How each row is started, by its name; rows whose program is not there are left out."""
    found = {}
    if shutil.which("nginx"):
        (Path(folder) / "nginx.conf").write_text(NGINX.format(d=folder, port=port, back=back))
        found["nginx"] = f"nginx -c {folder}/nginx.conf"
    router = os.environ.get("VLLM_ROUTER") or shutil.which("vllm-router")
    if router:
        found["vllm-router"] = (
            f"{router} --host 127.0.0.1 --port {port} --worker-urls http://127.0.0.1:{back} --policy round_robin "
            f"--log-level warning --prometheus-port {free_port()}"
        )
    found["relay alone"] = f"{sys.executable} -m tests.bench.bare_relay {port} http://127.0.0.1:{back}"
    found["kvgate"] = (
        f"{sys.executable} -m proxy serve --replica http://127.0.0.1:{back} --host 127.0.0.1 --port {port} "
        f"--admin-port {free_port()} --tokenizer {tokenizer}"
    )
    return found


def free_port() -> int:
    """A port nobody listens to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def answers(port: int) -> bool:
    """Whether a request through the proxy is answered."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=5) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def running(command: str, port: int) -> Iterator[tuple[list[int], float]]:
    """The proxy on core 0: its processes, and seconds from its start to the first answer. Raises RuntimeError."""
    began_s = time.perf_counter()
    process = subprocess.Popen(
        ["taskset", "-c", "0", *shlex.split(command)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not answers(port):
            if process.poll() is not None or time.perf_counter() - began_s > START_S_MAX:
                raise RuntimeError(f"it does not serve: {command}")
            time.sleep(0.05)
        ready_s = time.perf_counter() - began_s
        yield family(process.pid), ready_s
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def engine(port: int, *, scarce: bool) -> Iterator[None]:
    """The engine on core 1."""
    room = (SCARCE_BLOCKS, SCARCE_HOLD_S) if scarce else (PLENTY_BLOCKS, 0.0)
    listener = socket.create_server(("127.0.0.1", port), backlog=4096)
    process = multiprocessing.get_context("fork").Process(target=run_engine, args=(listener, *room), daemon=True)
    process.start()
    listener.close()
    try:
        yield
    finally:
        process.kill()
        process.join()


def play(name: str, command: str, port: int, back: int, seconds: float) -> dict[str, dict[str, float]]:
    """All loads on one row, by the load's name, and its start under ``start``."""
    found: dict[str, dict[str, float]] = {}
    for scarce in (False, True) if name == "kvgate" else (False,):
        with engine(back, scarce=scarce), running(command, port) as (pids, ready_s):
            time.sleep(SETTLE_S)
            rss_mb = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * 4096 / 1e6
            found.setdefault("start", {"ready_s": ready_s, "rss_mb": rss_mb})
            for key, kind in LOADS.items():
                if kind.scarce is scarce:
                    before = counts(command) if scarce else (0.0, 0.0)
                    found[key] = uvloop.run(
                        load(
                            port, kind.clients, period_ms=kind.period_ms, rate_per_s=kind.rate_per_s, warm_s=WARM_S, window_s=seconds,
                            cpu_s=partial(cpu_s, pids),
                        )
                    )  # fmt: skip
                    if scarce:
                        exact, every = (after - first for after, first in zip(counts(command), before, strict=True))
                        found[key]["counted_ratio"] = exact / every
                    if found[key]["failed"]:
                        sys.stderr.write(f"{name} {key}: {found[key]['failed']:.0f} failed\n")
    return found


def counts(command: str) -> tuple[float, float]:
    """Prompts that kvgate has counted exactly, and all of them, by its own word."""
    port = shlex.split(command)[shlex.split(command).index("--admin-port") + 1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith("kvgate_token_counts_total")]
    by_source = {line.partition('"')[2].partition('"')[0]: float(line.rpartition(" ")[2]) for line in lines}
    return by_source["exact"], sum(by_source.values())


def table(got: dict[str, list[dict[str, dict[str, float]]]]) -> str:
    """Markdown: a table for each load, medians, and in brackets the ratio to vllm-router and to nginx."""
    lines = []
    loads = {"start": Load("start", 0, ("ready_s", "rss_mb")), **LOADS}
    for key, kind in loads.items():
        lines += [f"### {kind.title}", "", "| row | " + " | ".join(kind.figures) + " |", "|---" * (len(kind.figures) + 1) + "|"]
        middle = {
            name: {figure: statistics.median(one[key][figure] for one in rounds) for figure in kind.figures}
            for name, rounds in got.items()
            if all(key in one for one in rounds)
        }
        against = {
            name: middle.get(name) or ({} if not kind.scarce else _of(got, name, "open64")) for name in ("vllm-router", "nginx")
        }
        for name, figures in middle.items():
            cells = []
            for figure, value in figures.items():
                ratios = [
                    f"{value / ref[figure]:.2f} × {peer}" for peer, ref in against.items() if peer != name and ref.get(figure)
                ]
                cells.append(f"{value:,.2f}" + (f" ({', '.join(ratios)})" if ratios else ""))
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _of(got: dict[str, list[dict[str, dict[str, float]]]], name: str, key: str) -> dict[str, float]:
    rounds = got.get(name, [])
    return {figure: statistics.median(one[key][figure] for one in rounds) for figure in LOADS[key].figures} if rounds else {}


def head(arguments: list[str]) -> str:
    """Machine, versions and the command."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?"
    )
    versions = [f"{name} {metadata.version(name)}" for name in ("uvicorn", "uvloop", "httptools", "tokenizers", "msgspec")]
    if find_spec("fastokens") is not None:
        versions.append(f"fastokens {metadata.version('fastokens')}, which counts")
    if shutil.which("nginx"):
        versions.append(subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=False).stderr.strip())
    return (
        "# What the data path costs\n\n"
        f"Written by `make bench-relay` (`python -m tests.bench.relay_peers {' '.join(arguments)}`) on {model}, {os.cpu_count()} cores, "
        f"Linux {platform.release()}, Python {platform.python_version()}; {', '.join(versions)}. Load average at its end: "
        f"{os.getloadavg()[0]:.1f}: above 2, other things ran too, and only CPU and its ratios mean something.\n"
    )


def main(arguments: list[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each window (default %(default)s)")
    parser.add_argument("--tokenizer", default=str(TOKENIZER_DIRECTORY), help="folder with tokenizer.json (default: the mock's)")
    parser.add_argument("--out", type=Path, default=HERE / "RELAY.md")
    args = parser.parse_args(arguments)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compileall.compile_dir(proxy.__path__[0], quiet=1)  # as pip leaves what it installs
    port, back = free_port(), free_port()
    got: dict[str, list[dict[str, dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        rows = commands(folder, port, back, args.tokenizer)
        for number in range(args.rounds):
            for name, command in rows.items():
                got.setdefault(name, []).append(play(name, command, port, back, args.seconds))
            sys.stderr.write(f"round {number + 1} of {args.rounds}\n")
    kept = args.out.read_text(encoding="utf-8") if args.out.exists() else ""
    notes = NOTES + kept.partition(NOTES)[2] if NOTES in kept else ""
    args.out.write_text(f"{head(arguments)}\n{table(got)}\n{notes}".rstrip() + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    with suppress(asyncio.CancelledError):
        sys.exit(main(sys.argv[1:]))
