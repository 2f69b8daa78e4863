"""What a recording holds, that no content is in it, and that the simulator and the report read what a proxy wrote."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import main
from proxy.serving.access import AdminAccess
from proxy.serving.recording import LINES_MAX, Tap
from proxy.sim.workloads import load_workload
from proxy.sim.workloads.recording import Recording
from tests.integration.serving.harness import Wire, admin_of, until
from tests.integration.serving.test_modes import LONG, fill, leave_all, small

TOKEN = "correct-horse-battery"
SECRET = "the quiet harbour of Lisbon at night"


async def command(*words: str) -> int:
    return await asyncio.to_thread(main, list(words))


async def recorded(admin: Wire, path: Path, seconds: float) -> "asyncio.Task[int]":
    """Begin to record; return when it has begun."""
    address = f"http://127.0.0.1:{admin.port}"
    task = asyncio.create_task(command("record", "--out", str(path), "--for", f"{seconds}s", "--admin", address))
    await until(lambda: (path.exists() and path.stat().st_size) or task.done(), "the first line")
    return task


@pytest.mark.slow
async def test_a_recording_tells_everything_but_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVGATE_ADMIN_TOKEN", TOKEN)
    path = tmp_path / "r.jsonl"
    listed = {"list": {"acme-corp": {"tokens_per_min": 6_000_000}}}
    async with small({"queue": {"requests_max": 2}, "tenants": listed}) as (mocks, proxy):
        proxy.services.access = AdminAccess(TOKEN)
        async with admin_of(proxy) as admin:
            task = await recorded(admin, path, 3.0)
            named = {"x-kvgate-tenant": "acme-corp", "x-kvgate-session": "talk-7", "x-kvgate-deadline-ms": "9000"}
            for _ in range(2):
                assert (
                    await proxy.wire.chat(named, messages=[{"role": "user", "content": SECRET * 8}], max_tokens=4)
                ).status == 200
            exchanges = await fill(proxy, waiting=2)
            assert (await proxy.wire.chat(max_tokens=4)).status == 429
            await leave_all(exchanges)
            await proxy.until_idle(*mocks)
            assert await task == 0
    capsys.readouterr()
    text = path.read_text()
    for word in ("harbour", "Lisbon", "acme", "talk-7", TOKEN):
        assert word not in text
    head, *rows, end = map(json.loads, text.splitlines())
    assert (head["recording"], head["mode"], head["engines"][0]["usable_blocks"]) == (1, "enforce", 128)
    assert (end["recording_end"], end["requests"]) == (1, len(rows))
    assert head["learned"]["lengths"][0]["name"] == []
    begun, ended = head["engines"][0], end["engines"][0]
    assert ended["scraped_s"] > begun["scraped_s"]
    assert ended["scrapes"] > begun["scrapes"] > 0
    assert [one["name"] for one in head["tenants"]] != ["acme-corp"]
    assert head["tenants"][0]["tokens_per_min"] == 6e6
    first, second = rows[:2]
    assert first["tenant"] == second["tenant"] == head["tenants"][0]["name"]
    assert re.fullmatch(r"[0-9a-f]{12}", first["tenant"])
    assert first["block_hashes"] == second["block_hashes"] != []
    assert (first["outcome"], first["client_wait_s"], first["output_tokens_max"]) == ("completed", 9.0, 4)
    refused = [row for row in rows if row["outcome"] == "queue_full"]
    assert [row["finish_reason"] for row in refused] == ["shed"]
    assert refused[0]["gate"] == "queue.requests_max"
    assert sum(row.get("held", False) for row in rows) >= 2, "those that left while they waited had waited"

    workload = load_workload(path, 1)
    assert isinstance(workload, Recording)
    assert len(workload.requests) == len(rows)
    assert await command("simulate", "--workload", str(path), "--json", "--jobs", "1", "--baseline", "") == 0
    policies = json.loads(capsys.readouterr().out)["policies"]
    assert list(policies) == ["recorded", "kvgate"]
    assert policies["recorded"]["offered"] == policies["kvgate"]["offered"] == len(rows)
    assert policies["recorded"]["shed"] == 1
    assert {"held", "queue_wait_s_p99"} <= policies["kvgate"].keys()


async def test_a_recording_needs_the_token_and_a_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KVGATE_ADMIN_TOKEN", raising=False)
    async with small({}) as (_, proxy), admin_of(proxy) as admin:
        address = f"http://127.0.0.1:{admin.port}"
        proxy.services.access = AdminAccess(TOKEN)
        path = tmp_path / "r.jsonl"
        assert await command("record", "--out", str(path), "--admin", address) == 1
        assert "needs the admin token" in capsys.readouterr().err
        assert not path.exists()
        path.touch()
        assert await command("record", "--out", str(path), "--admin", address) == 2
        assert "is there already" in capsys.readouterr().err
        assert await command("record", "--out", str(tmp_path / "r.csv"), "--admin", address) == 2
        token = {"authorization": f"Bearer {TOKEN}"}
        for asked in ("0", "-1", "nan", "x", "1e9"):
            assert (await admin.request("GET", f"/admin/record?for_s={asked}", b"", token)).status == 400
        assert proxy.services.keepers == [proxy.services.history.keep, proxy.services.decisions.keep]


async def test_a_reader_that_is_too_slow_loses_lines_which_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.serving.recording.LINES_MAX", 3)
    assert LINES_MAX > 3
    async with small({}) as (_, proxy):
        tap = Tap(proxy.services, 3600.0)
        lines = tap.lines()
        assert b'"recording":1' in await anext(lines)
        for _ in range(5):
            assert (await proxy.wire.chat(max_tokens=1)).status == 200
        proxy.services.ended.tell()
        tap._lasts_s = 0.0  # its time is over, however long they took
        told: list[dict[str, Any]] = [json.loads(line) async for line in lines]
        assert len(told) == 4
        assert (told[-1]["requests"], told[-1]["dropped"]) == (3, 2)
        assert proxy.services.keepers == [proxy.services.history.keep, proxy.services.decisions.keep]


async def test_observed_load_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    async with small({"mode": "observe"}) as (mocks, proxy), admin_of(proxy) as admin:
        address = f"http://127.0.0.1:{admin.port}"
        exchanges = [await proxy.wire.start_chat(**LONG) for _ in range(10)]
        await until(lambda: proxy.services.dispatcher.gate.open_requests == 10, "ten at work")
        await leave_all(exchanges)
        await proxy.until_idle(*mocks)
        assert await command("report", "--admin", address) == 1
        text = capsys.readouterr().out
        assert re.search(r"would have been held +[1-9]", text)
        assert "ready to enforce: no, because 10 requests observed in 0.0 h, fewer than 1000" in text
        assert await command("report", "--since", "5m", "--json", "--admin", address) == 1
        told = json.loads(capsys.readouterr().out)
        assert told["ready"] is False
        assert told["modes"]["observe"]["requests"] == 10
        assert 0.0 < told["modes"]["observe"]["own_s_p99"] < 1.0
        assert told["modes"]["observe"]["would_hold"] == proxy.services.dispatcher.gate.counters.would_hold > 0
        for asked in ("1", "x", "1e9"):
            assert (await admin.request("GET", f"/admin/report?since_s={asked}")).status == 400
    assert await command("report", "--admin", address) == 1
