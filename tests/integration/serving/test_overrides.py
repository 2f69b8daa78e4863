"""The switches over HTTP and by command: who may, what each answer says, where it shows, and that no request fails by it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import main
from proxy.serving.access import AdminAccess
from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import RunningProxy, Wire, admin_of, proxying, until, url_of
from tests.integration.serving.test_modes import LONG, fill, small

TOKEN = "correct-horse-battery"
BEARER = {"authorization": f"Bearer {TOKEN}"}


@asynccontextmanager
async def switchable(*, replicas: int = 1) -> AsyncIterator[tuple[list[RunningMock], RunningProxy, Wire]]:
    async with small({}, replicas=replicas) as (mocks, proxy):
        proxy.services.access = AdminAccess(TOKEN)
        async with admin_of(proxy) as admin:
            yield mocks, proxy, admin


async def command(admin: Wire, *words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("KVGATE_ADMIN_TOKEN", TOKEN)
    return await asyncio.to_thread(main, [*words, "--admin", f"http://127.0.0.1:{admin.port}"])


async def test_changes_need_the_token_and_looking_does_not() -> None:
    body = json.dumps({"mode": "off", "for_s": 60, "reason": "x"}).encode()
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy, admin_of(proxy) as admin:
        for method, path in (
            ("POST", "/admin/mode"),
            ("DELETE", "/admin/mode"),
            ("POST", "/admin/drains"),
            ("DELETE", "/admin/drains"),
        ):
            reply = await admin.request(method, path, body)
            assert (reply.status, reply.json()["error"]["code"]) == (403, "admin_token_not_set")
            assert "--admin-token-file" in reply.json()["error"]["message"]
        proxy.services.access = AdminAccess(TOKEN)
        assert (await admin.request("POST", "/admin/mode", body)).status == 401
        assert (await admin.request("POST", "/admin/mode", body, {"authorization": "Bearer wrong"})).status == 401
        assert (await admin.request("GET", "/admin/mode")).json()["mode"] == "enforce"
        assert (await admin.request("POST", "/admin/mode", body, {"x-kvgate-admin-token": TOKEN})).json()["mode"] == "off"


@pytest.mark.parametrize(
    "ask",
    [
        {"mode": "offf", "for_s": 60, "reason": "x"},
        {"mode": "off", "for_s": 0.5, "reason": "x"},
        {"mode": "off", "for_s": 604801, "reason": "x"},
        {"mode": "off", "for_s": 60, "reason": ""},
        {"mode": "off", "for_s": 60, "reason": "x" * 201},
        {"mode": "off", "for_s": 60},
        {"mode": "off", "for_s": 60, "reason": "x", "forr": 1},
        {"replica": "nobody", "for_s": 60, "reason": "x"},
    ],
)
async def test_what_cannot_be_done_changes_nothing(ask: dict[str, Any]) -> None:
    async with switchable() as (_, proxy, admin):
        path = "/admin/drains" if "replica" in ask else "/admin/mode"
        reply = await admin.request("POST", path, json.dumps(ask).encode(), BEARER)
        assert reply.status in {400, 404}
        assert reply.json()["error"]["message"]
        assert proxy.services.dispatcher.gate.mode == "enforce"


async def test_a_mode_by_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Requests wait, the mode is turned to off: they go on, nothing fails, it shows everywhere, and it is taken back."""
    async with switchable() as (mocks, proxy, admin):
        exchanges = await fill(proxy, waiting=2)
        gate = proxy.services.dispatcher.gate
        assert await command(admin, "mode", "off", "--for", "1h", "--reason", "night shift", monkeypatch=monkeypatch) == 0
        said = capsys.readouterr().out
        assert "mode off: by hand for 59m5" in said or "for 1h00m more" in said
        assert "night shift; the policy file says enforce" in said
        await until(lambda: not len(gate.queue) and gate.open_requests == len(exchanges), "those that waited")
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        assert 3500 < proxy.metric('kvgate_mode_override_seconds{mode="off"}') <= 3600
        ready = (await admin.request("GET", "/ready")).json()
        assert (ready["mode"], ready["override"]["reason"]) == ("off", "night shift")
        assert "127.0.0.1" in ready["override"]["by"]
        assert await command(admin, "mode", "--json", monkeypatch=monkeypatch) == 0
        (state,) = json.loads(capsys.readouterr().out)["proxies"].values()
        assert (state["mode"], state["policy_mode"], state["override"]["word"], state["proxies"]) == ("off", "enforce", "off", 1)
        assert await command(admin, "mode", "--clear", monkeypatch=monkeypatch) == 0
        assert gate.mode == "enforce"
        assert "override" not in (await admin.request("GET", "/ready")).json()
        assert {record.outcome for record in proxy.records} == {"completed"}
        for exchange in exchanges:
            await exchange.leave()
        await proxy.until_idle(*mocks)


async def test_a_drain_by_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async with switchable(replicas=2) as (mocks, proxy, admin):
        first, second = proxy.services.watchers
        running_there = [await proxy.wire.start_chat(**LONG) for _ in range(2)]
        gate = proxy.services.dispatcher.gate
        await until(lambda: gate.open_requests == 2, "two at work")
        assert await command(admin, "drain", first, "--for", "30m", "--reason", "driver", monkeypatch=monkeypatch) == 0
        assert f"replica {first} drains: by hand for" in capsys.readouterr().out
        for _ in range(4):
            assert (await proxy.wire.chat(max_tokens=2)).status == 200
        assert {record.replica for record in proxy.records} == {second}
        assert proxy.metric(f'kvgate_drain_override_seconds{{replica="{first}"}}') > 1700
        assert proxy.metric(f'kvgate_replica_phase{{phase="draining",replica="{first}"}}') == 1.0
        assert await command(admin, "resume", first, monkeypatch=monkeypatch) == 0
        assert proxy.metric(f'kvgate_replica_phase{{phase="draining",replica="{first}"}}') == 0.0
        assert gate.open_requests == 2
        for exchange in running_there:
            await exchange.leave()
        await proxy.until_idle(*mocks)


async def test_what_is_asked_wrongly_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async with switchable() as (_, proxy, admin):
        for words, told in (
            (["mode", "off"], "needs --for TIME and --reason TEXT"),
            (["mode", "off", "--for", "1h"], "needs --reason TEXT"),
            (["mode", "off", "--clear"], "--clear: takes no mode"),
            (["resume", "x", "--admin-token-file", str(tmp_path / "none")], "cannot be read"),
        ):
            assert await command(admin, *words, monkeypatch=monkeypatch) == 2
            assert told in capsys.readouterr().err
        assert await command(admin, "resume", "nobody", monkeypatch=monkeypatch) == 1
        assert "No replica 'nobody'; the replicas are" in capsys.readouterr().err
        monkeypatch.setenv("KVGATE_ADMIN_TOKEN", "another-token-altogether")
        assert await asyncio.to_thread(main, ["mode", "--clear", "--admin", f"http://127.0.0.1:{admin.port}"]) == 1
        assert "needs the admin token" in capsys.readouterr().err
        assert proxy.services.dispatcher.gate.mode == "enforce"
    assert await asyncio.to_thread(main, ["mode", "--admin", f"http://127.0.0.1:{admin.port}"]) == 1
    assert "is this the admin port of a running kvgate?" in capsys.readouterr().err
