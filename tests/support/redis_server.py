"""A real redis-server (or valkey-server) of one's own: started, stopped, killed, paused, flushed and configured by a test.

It listens on a unix socket and a free port of 127.0.0.1, keeps nothing on disk, and lives in a temporary folder.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import redis

CLUSTER_PORT_MAX = 55535
CLUSTER_WAIT_S = 30.0
READY = "Ready to accept connections"


def server_binary() -> str:
    """Path of the server: ``KVGATE_REDIS_SERVER``, else one that is installed. Raises RuntimeError: a missing part is no skip."""
    found = os.environ.get("KVGATE_REDIS_SERVER") or shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        raise RuntimeError(
            "redis-server is not installed: apt-get install redis-server. `make test` does without, `make test-redis` does not"
        )
    return found


def free_port() -> int:
    """A port that nothing listens on, and low enough for a cluster's bus, which is 10,000 above it."""
    while True:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port: int = taken.getsockname()[1]
        if port <= CLUSTER_PORT_MAX:
            return port


class RedisServer:
    """One server process. Its address stays the same over ``stop`` and ``start``."""

    def __init__(self, config: Mapping[str, str] | None = None) -> None:
        """``config`` are directives such as maxmemory, or several ``user`` lines separated by newlines."""
        self._folder = tempfile.TemporaryDirectory(prefix="kvgate-redis-")
        self.port = free_port()
        self.socket_path = str(Path(self._folder.name) / "redis.sock")
        self._config = dict(config or {})
        self._process: subprocess.Popen[str] | None = None
        self._drain: threading.Thread | None = None

    def __repr__(self) -> str:
        """Where it listens."""
        return f"<RedisServer {self.url}>"

    @property
    def url(self) -> str:
        """For clients over TCP."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """For clients on this machine, faster."""
        return f"unix://{self.socket_path}?db=0"

    def start(self) -> None:
        """Start it and wait until it serves. Raises RuntimeError with its log when it does not."""
        assert self._process is None, "it runs"
        lines = [f"port {self.port}", "bind 127.0.0.1", f"unixsocket {self.socket_path}", f"dir {self._folder.name}", 'save ""']
        lines += [f"{name} {value}" for name, values in self._config.items() for value in values.split("\n")]
        config = Path(self._folder.name) / "redis.conf"
        config.write_text("\n".join([*lines, "appendonly no", ""]), "utf-8")
        process = self._process = subprocess.Popen(
            [server_binary(), str(config)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self._folder.name
        )
        assert process.stdout is not None
        log = []
        for line in process.stdout:
            log.append(line)
            if READY in line:
                break
        else:
            self.stop()
            raise RuntimeError("redis-server did not start:\n" + "".join(log))
        self._drain = threading.Thread(target=process.stdout.read, daemon=True)  # so that its log never fills the pipe
        self._drain.start()

    def stop(self, *, sig: signal.Signals = signal.SIGKILL) -> None:
        """End it at once and forget what it held; nothing where it does not run."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(sig)
            self._process.wait()
            if self._drain is not None:
                self._drain.join()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = self._drain = None

    def restart(self) -> None:
        """Stop it and start it, empty, at the same address."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop it where it is: connections stay open and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused one go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def client(self) -> redis.Redis:
        """A blocking client, to look at it and to set it."""
        return redis.Redis.from_url(self.unix_url)

    def flush(self) -> None:
        """Lose all keys."""
        with self.client() as client:
            client.flushall()

    def form_cluster(self) -> None:
        """Make it a cluster of one, started with ``cluster-enabled yes``, and wait until that serves."""
        with self.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))  # Redis 6 knows no ADDSLOTSRANGE
            until_s = time.monotonic() + CLUSTER_WAIT_S
            while "cluster_state:ok" not in str(client.execute_command("CLUSTER", "INFO")):
                assert time.monotonic() < until_s, "the cluster does not come up"
                time.sleep(0.02)  # nothing tells when it does

    def close(self) -> None:
        """Stop it and remove its folder."""
        self.stop()
        self._folder.cleanup()


@contextmanager
def redis_server(config: Mapping[str, str] | None = None) -> Iterator[RedisServer]:
    """A running server for as long as the block runs."""
    server = RedisServer(config)
    try:
        server.start()
        yield server
    finally:
        server.close()
