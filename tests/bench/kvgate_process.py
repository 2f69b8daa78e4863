"""``kvgate serve`` as a process of its own in front of one replica, for tests and benchmarks on a real engine."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

START_S_MAX = 60.0
STOP_S_MAX = 30.0
# A closed loop on a slow machine may hold a request longer than people would wait; draining has nobody to wait for.
POLICY = """\
queue:
  wait_max: 10m
relay:
  drain_accept: 0s
"""


@dataclass(frozen=True, slots=True)
class KvgateProcess:
    """Where it listens, and the file it logs to."""

    base_url: str
    admin_url: str
    log: Path


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    give_up_s = time.monotonic() + START_S_MAX
    while True:
        try:
            if httpx.get(f"{url}/ready", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        if process.poll() is not None or time.monotonic() > give_up_s:
            ended = "is not ready" if process.returncode is None else f"ended with {process.returncode}"
            raise RuntimeError(f"kvgate {ended}; its log:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.1)


@contextmanager
def kvgate_process(replica_url: str, model_dir: Path, folder: Path, *flags: str) -> Iterator[KvgateProcess]:
    """Run it until the block ends. Raises RuntimeError when it does not start, or does not end by itself with status 0."""
    port, admin_port = _free_ports(2)
    log, policy = folder / "kvgate.log", folder / "policy.yaml"
    policy.write_text(POLICY, encoding="utf-8")
    command = [
        *(sys.executable, "-m", "proxy", "serve", "--replica", replica_url, "--tokenizer", str(model_dir)),
        *("--host", "127.0.0.1", "--port", str(port), "--admin-port", str(admin_port), "--policy", str(policy), *flags),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, stdout=output, stderr=output)
    admin_url = f"http://127.0.0.1:{admin_port}"
    try:
        _wait_until_ready(process, admin_url, log)
        yield KvgateProcess(f"http://127.0.0.1:{port}", admin_url, log)
        process.send_signal(signal.SIGTERM)
        if process.wait(STOP_S_MAX):
            raise RuntimeError(f"kvgate ended with {process.returncode}; its log:\n{log.read_text(errors='replace')[-4000:]}")
    finally:
        process.kill()
        process.wait()
