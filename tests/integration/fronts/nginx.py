"""A real nginx with the configuration that we ship, on ports of the test."""

import asyncio
import os
import re
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

SHIPPED = Path(__file__).parents[3] / "deploy" / "nginx" / "kvgate.conf"
FRAME = """\
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
events {{ worker_connections 2048; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/kvgate.conf;
}}
"""


@dataclass(slots=True)
class Nginx:
    """A running one."""

    folder: Path
    port: int
    process: asyncio.subprocess.Process | None = None

    def behind(self, proxies: Sequence[int]) -> None:
        """Write the shipped configuration with these proxies in it; ``reload`` makes it hold."""
        shipped = SHIPPED.read_text(encoding="utf-8")
        first, *others = re.findall(r"^    server kvgate-\d:8080 .*\n", shipped, re.MULTILINE)
        lines = "".join(first.replace("kvgate-1:8080", f"127.0.0.1:{port}") for port in proxies)
        text = shipped.replace(first, lines).replace("listen 80;", f"listen 127.0.0.1:{self.port};")
        for other in others:
            text = text.replace(other, "")
        assert "kvgate-" not in re.sub(r"#.*", "", text)
        (self.folder / "kvgate.conf").write_text(text, encoding="utf-8")

    def reload(self) -> None:
        """As ``nginx -s reload`` does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    @property
    def log(self) -> str:
        return (self.folder / "error.log").read_text(encoding="utf-8")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def nginx(folder: Path, proxies: Sequence[int]) -> AsyncIterator[Nginx]:
    """Run it before these proxies' ports until the block ends."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.fail("nginx is missing: apt-get install nginx-light")
    server = Nginx(folder, free_port())
    server.behind(proxies)
    frame = folder / "nginx.conf"
    frame.write_text(FRAME.format(folder=folder, user="user root;" if os.geteuid() == 0 else ""), encoding="utf-8")
    server.process = await asyncio.create_subprocess_exec(
        program, "-e", str(folder / "error.log"), "-p", str(folder), "-c", str(frame)
    )
    try:
        async with asyncio.timeout(20):
            while not await answers(server.port):
                if server.process.returncode is not None:
                    pytest.fail(f"nginx did not start: {server.log}")
                await asyncio.sleep(0.02)
        yield server
    finally:
        if server.process.returncode is None:
            server.process.send_signal(signal.SIGTERM)
        await server.process.wait()
    assert "[crit]" not in server.log, server.log


async def answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return False
    writer.close()
    return True
