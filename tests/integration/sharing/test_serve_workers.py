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
from proxy.cli import main
from proxy.config.redis_url import store_address
from proxy.config.settings import SettingsError
from proxy.core.policy import Store
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import Wire, until, url_of
from tests.integration.serving.test_serve_command import SERVING, Serve, save, serve
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
            await both_are_told_of(main, list(admins.values()))
            killed = next(iter(admins))
            os.kill(int(killed), signal.SIGKILL)
            await kvgate.said(rf"worker\.died worker=\d process={killed} code=-9")
            third = next(admin for who, admin in (await workers_of(kvgate, 3)).items() if who not in admins)
            await until_shared(third, 2)  # one that ends before it shares leaves its card to the lease
            assert (await main.chat(model="mock", max_tokens=5)).status == 200
            kvgate.process.send_signal(signal.SIGTERM)
            assert await kvgate.ended() == 0
            left = server.client().hkeys("kvgate:{default}:proxies")
            assert [name for name in left if f":{killed}:".encode() not in name] == [], "who ends in order takes its card out"


@pytest.mark.redis
async def test_every_worker_takes_a_saved_policy_up(server: RedisServer, tmp_path: Path) -> None:
    """Which one rules where is told by any of them; SIGHUP to the parent ends nobody."""
    async with running(settings()) as mock:
        arguments = ("--replica", url_of(mock), "--redis", server.url, "--workers", "2")
        async with serve(*arguments, policy="relay: {drain_accept: 0s}\n", folder=tmp_path) as kvgate:
            admins = list((await workers_of(kvgate, 2)).values())
            for admin in admins:
                await until_shared(admin, 2)
            before = (await admins[0].request("GET", "/admin/policy")).json()["version"]
            save(tmp_path / "policy.yaml", "relay: {drain_accept: 0s}\nqueue: {requests_max: 7}\n")
            kvgate.process.send_signal(signal.SIGHUP)
            after = {await until_live(admin, before) for admin in admins}
            assert len(after) == 1
            async with asyncio.timeout(20):
                while {card["policy_digest"] for card in await cards_of(admins[0])} != after:
                    pass  # asking takes a while
            main, _ = await kvgate.ports()
            assert (await main.chat(model="mock", max_tokens=5)).status == 200
            kvgate.process.send_signal(signal.SIGTERM)
            assert await kvgate.ended() == 0


async def cards_of(admin: Wire) -> list[dict[str, str]]:
    cards: list[dict[str, str]] = (await admin.request("GET", "/admin/proxies")).json()["proxies"]
    return cards


async def until_live(admin: Wire, before: str) -> str:
    """Wait until the worker goes by another policy; its version."""
    async with asyncio.timeout(20):
        while True:
            version: str = (await admin.request("GET", "/admin/policy")).json()["version"]
            if version != before:
                return version


async def both_are_told_of(main: Wire, admins: list[Wire]) -> None:
    """One chat was served, by whichever worker: its count is that of one, and both answer the same with both."""
    completed = re.compile(
        r'^kvgate_requests_total\{(?:worker="(\d)",)?outcome="completed",traffic_class="default"\} ([0-9.]+)$', re.MULTILINE
    )
    own = [completed.findall((await admin.request("GET", "/metrics")).body.decode()) for admin in admins]
    assert sum(float(value) for found in own for _, value in found) == 1.0
    for asked, path in ((main, "/metrics"), (admins[0], "/metrics/workers"), (admins[1], "/metrics/workers")):
        text = (await asked.request("GET", path)).body.decode()
        assert 'kvgate_worker_up{worker="0"} 1\n' in text
        assert 'kvgate_worker_up{worker="1"} 1\n' in text
        assert sum(float(value) for _, value in completed.findall(text)) == 1.0


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


@pytest.mark.redis
async def test_a_mode_for_all_reaches_every_worker_and_one_that_starts_later(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVGATE_ADMIN_TOKEN", "correct-horse-battery")

    async def says(admin: Wire, *words: str) -> int:
        return await asyncio.to_thread(main, [*words, "--all", "--admin", f"http://127.0.0.1:{admin.port}"])

    async def until_mode(admins: list[Wire], mode: str) -> None:
        async with asyncio.timeout(20):
            for admin in admins:
                while (await admin.request("GET", "/admin/mode")).json()["mode"] != mode:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    async with running(settings()) as mock:
        arguments = ("--replica", url_of(mock), "--redis", server.url, "--workers", "2")
        async with serve(*arguments, policy="relay: {drain_accept: 0s}\n", folder=tmp_path) as kvgate:
            admins = await workers_of(kvgate, 2)
            clients, _ = await kvgate.ports()
            for admin in admins.values():
                await until_shared(admin, 2)
            first = next(iter(admins.values()))
            assert await says(first, "mode", "observe", "--for", "1h", "--reason", "a look") == 0
            await until_mode(list(admins.values()), "observe")
            replies = await asyncio.gather(*(clients.chat(model="mock", max_tokens=5) for _ in range(12)))
            assert {reply.status for reply in replies} == {200}
            assert not any("internal_error" in line for line in kvgate.lines), "observing asks the store for nothing"
            os.kill(int(next(iter(admins))), signal.SIGKILL)
            later = await workers_of(kvgate, 3)
            await until_mode([admin for who, admin in later.items() if who not in admins], "observe")
            second = list(admins.values())[1]
            assert await says(second, "mode", "--clear") == 0
            await until_mode([admin for who, admin in later.items() if who != next(iter(admins))], "enforce")
