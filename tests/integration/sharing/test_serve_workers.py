"""``kvgate serve --redis`` as processes: workers on one port, and what it says when it cannot use the store."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy import app
from proxy.config.redis_url import store_address
from proxy.config.settings import SettingsError
from proxy.core.policy import Store
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import Wire, until, url_of
from tests.integration.serving.test_serve_command import SERVING, Serve, serve
from tests.support.redis_server import RedisServer, redis_server


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as found:
        yield found


async def workers_of(kvgate: Serve, count: int) -> dict[str, Wire]:
    """Wait until so many serve; their admin clients by process id."""

    def seen() -> dict[str, Wire]:
        lines = [(re.search(r"\[(\d+)\]", line), SERVING.search(line)) for line in kvgate.lines]
        return {who[1]: Wire(int(found[2])) for who, found in lines if who and found}

    await until(lambda: len(seen()) >= count, f"{count} workers", 40.0)
    return seen()


@pytest.mark.redis
async def test_workers_serve_one_port_and_share(server: RedisServer, tmp_path: Path) -> None:
    policy = "relay: {drain_accept: 0s}\n"
    async with running(settings()) as mock:
        arguments = ("--replica", url_of(mock), "--redis", server.url, "--workers", "2")
        async with serve(*arguments, policy=policy, folder=tmp_path) as kvgate:
            admins = await workers_of(kvgate, 2)
            main, _ = await kvgate.ports()
            for admin in admins.values():
                await until_shared(admin, 2)
            assert (await main.chat(model="mock", max_tokens=5)).status == 200
            assert len({admin.port for admin in admins.values()}) == 2
            killed = next(iter(admins))
            os.kill(int(killed), signal.SIGKILL)
            await kvgate.said(rf"worker\.died worker=\d process={killed} code=-9")
            assert len(await workers_of(kvgate, 3)) == 3
            assert (await main.chat(model="mock", max_tokens=5)).status == 200
            kvgate.process.send_signal(signal.SIGTERM)
            assert await kvgate.ended() == 0
            left = server.client().hkeys("kvgate:{default}:proxies")
            assert [name for name in left if f":{killed}:".encode() not in name] == [], "who ends in order takes its card out"


async def until_shared(admin: Wire, proxies: int) -> None:
    """Wait until the worker shares, and knows of so many."""
    async with asyncio.timeout(20):
        while True:
            told = (await admin.request("GET", "/admin/proxies")).json()
            if told["store"]["phase"] == "sharing" and len(told["proxies"]) == proxies:
                return


def test_a_missing_package_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "proxy.adapters.redis_store", None)
    with pytest.raises(SettingsError, match=r"pip install 'kvgate\[redis\]'"):
        app.redis_store(store_address("redis://h"), Store())


def test_nothing_of_redis_is_loaded_without_it() -> None:
    code = "import sys, proxy.app; sys.exit(any(name.split('.')[0] == 'redis' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
