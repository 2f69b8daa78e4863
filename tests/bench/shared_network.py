"""How proxies reach the one Redis, so that one of them can be cut off from it alone.

Ways, told by ``kind``:

- ``namespaces``: each proxy lives in a network namespace of its own with two links to where everything else is: one to clients and
  replicas, one to Redis. A partition takes the second down: packets are lost, nobody is told. It needs a namespace for the harness too
  (``enter``), so that the machine's own network is never touched.
- ``relay``: where the kernel does not allow that, each proxy has its own port of a TCP relay (``tests.bench.shared_relay``), which then
  swallows what comes from either side. Connections are still taken, as by a balancer before a dead server.
- ``direct``: nobody is to be cut off.

Fails: RuntimeError with what ``ip`` said when a link cannot be made.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

INSIDE = "KVGATE_BENCH_NAMESPACE"  # set in the environment of a harness that lives in its own namespace
HOST = "10.77.255.1"  # where mocks and clients are
STORE = "10.77.255.2"  # where Redis is
BOUND_TO_US = ("setpriv", "--pdeathsig", "KILL")  # before a command: it dies with this process


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


def _unshare() -> list[str] | None:
    """Words that start a program in a fresh network namespace, None where the kernel forbids it."""
    for words in (["unshare", "--net"], ["unshare", "--net", "--map-root-user"]):
        try:
            trial = subprocess.run(
                [*words, "unshare", "--net", "ip", "link", "set", "lo", "up"], capture_output=True, check=False
            )
        except FileNotFoundError:
            return None
        if trial.returncode == 0:
            return words
    return None


def enter(module: str, argv: list[str]) -> None:
    """Start ``python -m module argv`` anew in a namespace of its own; return where it is in one already or there can be none."""
    if INSIDE in os.environ:
        return
    words = _unshare()
    os.environ[INSIDE] = "" if words is None else "namespaces"
    if words is not None:
        sys.stdout.flush()
        os.execvp(words[0], [*words, sys.executable, "-m", module, *argv])  # noqa: S606


class Network(Protocol):
    """Addresses and cuts for ``proxies`` processes."""

    kind: str

    @property
    def host(self) -> str:
        """Where mocks listen and proxies find them."""
        ...

    def open(self) -> None:
        """Make it."""
        ...

    def close(self) -> None:
        """Take it away."""
        ...

    def prefix(self, proxy: int) -> list[str]:
        """Words before a proxy's command."""
        ...

    def address(self, proxy: int) -> str:
        """Where a proxy is reached."""
        ...

    def store(self, proxy: int) -> tuple[str, int]:
        """Where a proxy finds Redis."""
        ...

    def cut(self, proxy: int) -> None:
        """Cut a proxy off from Redis."""
        ...

    def heal(self, proxy: int) -> None:
        """Give it back."""
        ...


class Namespaces:
    """One namespace per proxy; only inside a namespace of the harness's own."""

    kind = "namespaces"
    host = HOST

    def __init__(self, proxies: int, store_port: int) -> None:
        self._proxies, self._store_port = proxies, store_port
        self._holders: list[subprocess.Popen[bytes]] = []

    def open(self) -> None:
        """Make the links: 10.77.PROXY.0/30 for clients and replicas, 10.78.PROXY.0/30 for Redis."""
        _run("ip", "link", "set", "lo", "up")
        for address in (HOST, STORE):
            _run("ip", "address", "add", f"{address}/32", "dev", "lo")
        for proxy in range(self._proxies):
            holder = subprocess.Popen([*BOUND_TO_US, "unshare", "--net", "sleep", "infinity"])
            self._holders.append(holder)
            while _namespace("self") == _namespace(str(holder.pid)):  # until unshare has run
                os.sched_yield()
            inside = self.prefix(proxy)
            _run(*inside, "ip", "link", "set", "lo", "up")
            for name, net, target in ((f"data{proxy}", 77, HOST), (f"store{proxy}", 78, STORE)):
                _run("ip", "link", "add", name, "type", "veth", "peer", "name", "peer", "netns", str(holder.pid))
                _run("ip", "address", "add", f"10.{net}.{proxy}.1/30", "dev", name)
                _run("ip", "link", "set", name, "up")
                _run(*inside, "ip", "link", "set", "peer", "name", name)
                _run(*inside, "ip", "address", "add", f"10.{net}.{proxy}.2/30", "dev", name)
                _run(*inside, "ip", "link", "set", name, "up")
                _run(*inside, "ip", "route", "add", target, "via", f"10.{net}.{proxy}.1")

    def close(self) -> None:
        """End the namespaces; their links go with them."""
        for holder in self._holders:
            holder.kill()
            holder.wait()
        self._holders.clear()
        for address in (HOST, STORE):
            _run("ip", "address", "del", f"{address}/32", "dev", "lo")

    def prefix(self, proxy: int) -> list[str]:
        """Run it in the proxy's namespace."""
        return ["nsenter", f"--net=/proc/{self._holders[proxy].pid}/ns/net"]

    def address(self, proxy: int) -> str:
        """Its end of its link to us."""
        return f"10.77.{proxy}.2"

    def store(self, proxy: int) -> tuple[str, int]:  # noqa: ARG002  the same for all
        """Redis itself."""
        return STORE, self._store_port

    def cut(self, proxy: int) -> None:
        """Take its link to Redis down on our side: it is not told."""
        _run("ip", "link", "set", f"store{proxy}", "down")

    def heal(self, proxy: int) -> None:
        """Take it up again."""
        _run("ip", "link", "set", f"store{proxy}", "up")


def _namespace(process: str) -> Path:
    return Path(f"/proc/{process}/ns/net").readlink()


class Direct:
    """Everything on 127.0.0.1, and nothing to cut."""

    kind = "direct"
    host = "127.0.0.1"

    def __init__(self, store_port: int) -> None:
        self._store_port = store_port

    def open(self) -> None:
        """It is there."""

    def close(self) -> None:
        """It stays."""

    def prefix(self, proxy: int) -> list[str]:  # noqa: ARG002
        """Nothing: it runs here."""
        return []

    def address(self, proxy: int) -> str:  # noqa: ARG002
        """Here."""
        return self.host

    def store(self, proxy: int) -> tuple[str, int]:  # noqa: ARG002
        """Redis itself."""
        return self.host, self._store_port

    def cut(self, proxy: int) -> None:
        """Not here."""
        raise RuntimeError(f"proxy {proxy} cannot be cut off")

    def heal(self, proxy: int) -> None:
        """Not here."""
        raise RuntimeError(f"proxy {proxy} cannot be cut off")


class Relay(Direct):
    """A relay in a process of its own, one port per proxy; see ``tests.bench.shared_relay``."""

    kind = "relay"

    def __init__(self, ports: list[int], store_port: int) -> None:
        super().__init__(store_port)
        self._ports = ports
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Start it; it says a line when all its ports are open."""
        words = [sys.executable, str(Path(__file__).with_name("shared_relay.py")), str(self._store_port), *map(str, self._ports)]
        self._process = subprocess.Popen([*BOUND_TO_US, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._expect()

    def close(self) -> None:
        """End it."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process = None

    def store(self, proxy: int) -> tuple[str, int]:
        """Its own port of the relay."""
        return self.host, self._ports[proxy]

    def cut(self, proxy: int) -> None:
        """Let its bytes wait."""
        self._tell(f"cut {proxy}")

    def heal(self, proxy: int) -> None:
        """Pass them on."""
        self._tell(f"heal {proxy}")

    def _tell(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        self._expect()

    def _expect(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"done\n":
            raise RuntimeError("the relay has ended")
