"""Redis, mock replicas and ``kvgate serve --redis`` as real processes that can be killed, stopped, cut off and started again.

``Fleet`` owns them. Starting a process waits until it serves; everything ends with the block, and with this process (``setpriv``).

Fails: RuntimeError with the end of its log when a process does not start in time, or ends by itself.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from proxy.bench.processes import free_ports
from proxy.sim.mock_text import TOKENIZER_DIRECTORY
from tests.bench.admin import why_not_deciding
from tests.bench.shared_network import BOUND_TO_US, INSIDE, STORE, Direct, Namespaces, Network, Relay
from tests.support.redis_server import RedisServer

START_S_MAX = 120.0  # a busy machine takes long to load Python eight times
STOP_S_MAX = 20.0
LOG_CHARS = 4000
FAULT = re.compile("Traceback|internal_error")  # a log in JSON has the frames, not the word
CLOCK_AHEAD = """\
import time
_monotonic, _wall = time.monotonic, time.time
time.monotonic = lambda: _monotonic() + {ahead_s}
time.time = lambda: _wall() + {ahead_s}
"""
EMPTY: Mapping[str, str] = {}
DEVELOPMENT = {"VLLM_SERVER_DEV_MODE": "1"}  # an engine can be told to stand still while it is compared
STORE_ADDRESSES = ("127.0.0.1", f"-{STORE}")  # the second one only where it is there: in a namespace
POLICY = """\
queue: {{wait_max: {wait_max}}}
relay: {{drain_accept: 0s, grace: 5s}}
{store}classes:
  - {{name: high, match: {{headers: {{x-class: high}}}}, priority: 10}}
replicas:
{replicas}
"""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """What runs. Blocks are each replica's; ``speed`` is the mock's, 1 a GPU's."""

    folder: Path
    proxies: int = 4
    replicas: int = 4
    kv_blocks: int = 513
    context_tokens: int = 4096
    speed: float = 0.5
    output_median: float = 150.0
    output_sigma: float = 0.7
    lease_s: float = 3.0
    timeout_s: float = 0.1  # of a call of the store
    wait_max: str = "30s"
    shared: bool = True  # False: proxies that know nothing of each other
    cuttable: bool = False  # whether a proxy can be cut off from Redis
    clocks_ahead_s: tuple[float, ...] = ()  # of each proxy: its clocks, monotonic and wall, are so much ahead
    log_level: str = "warning"
    startup: str = ""  # Python that every proxy runs before kvgate


class Child:
    """One process and its log."""

    def __init__(self, name: str, command: list[str], folder: Path, environment: Mapping[str, str] = EMPTY) -> None:
        self.name, self.command, self.environment = name, command, environment
        self.log = folder / f"{name}.log"
        self.stopped = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its number. Raises RuntimeError when it does not run."""
        if not self.running:
            raise RuntimeError(self.why("does not run"))
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has been started and not ended; a stopped one runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; its log goes on."""
        assert not self.running, self.name
        environment = {key: value for key, value in os.environ.items() if not key.startswith("KVGATE_")}
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [*BOUND_TO_US, *self.command], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=environment | {"HF_HUB_OFFLINE": "1", "OPENBLAS_NUM_THREADS": "1"} | self.environment,
            )  # fmt: skip
        self.stopped = False

    def kill(self) -> None:
        """``kill -9``, and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """SIGSTOP: it does nothing, and its connections stay."""
        os.kill(self.pid, signal.SIGSTOP)
        self.stopped = True

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)
        self.stopped = False

    def why(self, what: str) -> str:
        """Say that it ``what``, with the end of its log."""
        said = self.log.read_text(errors="replace")[-LOG_CHARS:] if self.log.exists() else ""
        code = self._process.returncode if self._process is not None else None
        return f"{self.name} {what} (exit code {code}); its log ends:\n{said}"

    async def until(self, url: str) -> None:
        """Wait until ``url`` answers 200."""
        give_up_s = asyncio.get_running_loop().time() + START_S_MAX
        async with httpx.AsyncClient() as client:
            while True:
                try:
                    if (await client.get(url, timeout=5)).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                if not self.running or asyncio.get_running_loop().time() > give_up_s:
                    raise RuntimeError(self.why("did not start"))
                await asyncio.sleep(0.1)


@dataclass(slots=True)
class Proxy:
    """One ``kvgate serve``. ``up``: a balancer would send to it."""

    index: int
    child: Child
    url: str
    admin_url: str
    up: bool = False
    killed_s: list[float] = field(default_factory=list)  # when, by the loop's clock


class Fleet:
    """All of it. ``async with Fleet(settings) as fleet`` starts everything and ends it; with ``urls`` those are its replicas."""

    def __init__(self, settings: FleetSettings, urls: list[str] | None = None) -> None:
        self.settings = settings
        settings.folder.mkdir(parents=True, exist_ok=True)
        count, mocks = settings.proxies, settings.replicas if urls is None else 0
        ports = free_ports(mocks + 3 * count)
        mock_ports, proxy_ports = ports[:mocks], ports[mocks:]
        self.redis = RedisServer({"bind": " ".join(STORE_ADDRESSES), "protected-mode": "no"})
        self.network = self._network(proxy_ports[2 * count :])
        self.replica_urls = urls or [f"http://{self.network.host}:{port}" for port in mock_ports]
        self.mocks = [
            Child(f"mock{i}", self._mock_command(i, port), settings.folder, DEVELOPMENT) for i, port in enumerate(mock_ports)
        ]
        self._ports = list(zip(proxy_ports[:count], proxy_ports[count : 2 * count], strict=True))
        self.proxies: list[Proxy] = []

    def _network(self, relay_ports: list[int]) -> Network:
        if not self.settings.cuttable:
            return Direct(self.redis.port)
        if os.environ.get(INSIDE):
            return Namespaces(self.settings.proxies, self.redis.port)
        return Relay(relay_ports, self.redis.port)

    def _mock_command(self, index: int, port: int) -> list[str]:
        known = self.settings
        return [
            sys.executable, "-m", "proxy", "mock-vllm", "--host", self.network.host, "--port", str(port),
            "--num-gpu-blocks", str(known.kv_blocks), "--max-model-len", str(known.context_tokens), "--speed", str(known.speed),
            "--output-median", str(known.output_median), "--output-sigma", str(known.output_sigma), "--seed", str(index),
        ]  # fmt: skip

    def _proxy_command(self, index: int, policy: Path) -> list[str]:
        (port, admin_port), host = self._ports[index], self.network.address(index)
        words = [
            *self.network.prefix(index), sys.executable, "-m", "proxy", "serve", "--policy", str(policy),
            "--tokenizer", str(TOKENIZER_DIRECTORY), "--host", host, "--port", str(port),
            "--admin-host", host, "--admin-port", str(admin_port), "--log-level", self.settings.log_level,
        ]  # fmt: skip
        if self.settings.shared:
            host, store_port = self.network.store(index)
            words += ["--redis", f"redis://{host}:{store_port}"]
        return words

    def _beginning(self, index: int) -> dict[str, str]:
        """What makes Python begin with clocks that are ahead, or with ``startup``; nothing of kvgate is touched."""
        text, ahead_s = self.settings.startup, self.settings.clocks_ahead_s
        if index < len(ahead_s):
            text += CLOCK_AHEAD.format(ahead_s=ahead_s[index])
        if not text:
            return {}
        folder = self.settings.folder / f"beginning{index}"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(text, "utf-8")
        return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}

    def _write_policy(self) -> Path:
        known = self.settings
        replicas = "\n".join(f"  - {{name: r{i}, url: '{url}'}}" for i, url in enumerate(self.replica_urls))
        path = known.folder / "policy.yaml"
        store = (
            f"store: {{lease: {known.lease_s * 1000:.0f}ms, timeout: {known.timeout_s * 1000:.0f}ms}}\n" if known.shared else ""
        )
        path.write_text(POLICY.format(wait_max=known.wait_max, store=store, replicas=replicas), "utf-8")
        return path

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    async def _start(self) -> None:
        self.network.open()
        if self.settings.shared:
            self.redis.start()
        for mock in self.mocks:
            mock.start()
        await asyncio.gather(*(mock.until(f"{url}/health") for mock, url in zip(self.mocks, self.replica_urls, strict=False)))
        policy = self._write_policy()
        for index, (port, admin_port) in enumerate(self._ports):
            command, environment = self._proxy_command(index, policy), self._beginning(index)
            child = Child(f"proxy{index}", command, self.settings.folder, environment)
            host = self.network.address(index)
            self.proxies.append(Proxy(index, child, f"http://{host}:{port}", f"http://{host}:{admin_port}"))
        await asyncio.gather(*(self.start_proxy(proxy) for proxy in self.proxies))

    def _end(self) -> None:
        for child in (*(proxy.child for proxy in self.proxies), *self.mocks):
            child.kill()
        self.redis.close()
        self.network.close()

    # ---- what can be done to it

    async def start_proxy(self, proxy: Proxy) -> None:
        """Start it and wait until it takes requests."""
        proxy.child.start()
        await proxy.child.until(f"{proxy.admin_url}/ready")
        proxy.up = True

    def kill_proxy(self, proxy: Proxy) -> None:
        """``kill -9``."""
        proxy.up = False
        proxy.killed_s.append(asyncio.get_running_loop().time())
        proxy.child.kill()

    async def complaints(self) -> dict[str, str]:
        """Faults inside: from logs, and proxies that relay without deciding; by name of the process, the first of each."""
        found = {proxy.child.name: why for proxy in self.proxies if proxy.up and (why := await why_not_deciding(proxy.admin_url))}
        for child in (*(proxy.child for proxy in self.proxies), *self.mocks):
            text = child.log.read_text(errors="replace") if child.log.exists() else ""
            fault = FAULT.search(text)
            if fault is not None:
                found[child.name] = text[max(0, fault.start() - 200) : fault.start() + LOG_CHARS]
        return found
