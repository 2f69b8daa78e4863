"""A snapshot holds what a ticket needs, tenants hashed unless asked for, and is asked for by its command."""

import asyncio
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import main
from tests.integration.serving.harness import admin_of
from tests.integration.serving.test_modes import fill, leave_all, small

POLICY: dict[str, Any] = {
    "queue": {"requests_max": 4},
    "tenants": {"list": {"acme": {"requests_per_s": 0.001, "burst": "1s"}}, "weights": {"globex": 2}},
}


async def taken(address: str, path: Path, *more: str) -> dict[str, Any]:
    assert await asyncio.to_thread(main, ["snapshot", address, "-o", str(path), *more]) == 0
    return read(path)


def read(path: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return told


async def test_a_snapshot_is_whole_and_names_no_tenant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with small(POLICY) as (mocks, proxy), admin_of(proxy) as admin:
        address = f"http://127.0.0.1:{admin.port}"
        statuses = [(await proxy.wire.chat({"x-kvgate-tenant": "acme"}, max_tokens=2)).status for _ in range(2)]
        assert statuses == [200, 429]
        assert (await proxy.wire.chat({"x-kvgate-tenant": "globex"}, max_tokens=2)).status == 200
        exchanges = await fill(proxy)
        told = await taken(address, tmp_path / "a.json.gz")
        text = json.dumps(told)
        assert not re.search("acme|globex", text)
        assert (told["snapshot"], told["tenants"], told["health"]["ready"]) == (1, "hashed", True)
        assert told["policy"]["in_force"]["queue"]["requests_max"] == 4
        (replica,) = told["replicas"]
        assert replica["usable_blocks"] == 128
        assert replica["observations"]
        assert len(told["leases"]) == len(exchanges) - 1
        assert [one["class"] for one in told["queue"]] == ["default"]
        assert [one["phase"] for one in told["open"]].count("waiting") == 1
        other, refused, served = told["decisions"][-3:]
        assert served["request"]["tenant"] == refused["request"]["tenant"] != other["request"]["tenant"]
        assert refused["outcome"] == "tenant_rate"
        assert served["request"]["tenant"] in refused["refused"]["policy_key"]
        assert any(line.startswith("kvgate_open_requests ") for line in told["metrics"])
        out = capsys.readouterr().out
        assert f"3 decisions, {len(exchanges)} open requests, {len(exchanges) - 1} leases, 1 replicas; tenants hashed" in out

        named = await taken(address, tmp_path / "b.json.gz", "--tenant-names")
        assert named["decisions"][-1]["request"]["tenant"] == "acme"
        assert "acme" in json.dumps(named["policy"])
        again = await taken(address, tmp_path / "c.json.gz")
        assert again["decisions"][-1]["request"]["tenant"] != served["request"]["tenant"], "a key of its own"
        await leave_all(exchanges)
        await proxy.until_idle(*mocks)


async def test_what_is_asked_wrongly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "a.json.gz"
    there.touch()
    for out, why in ((there, "is there already"), (tmp_path / "a.json", "ends in .json.gz")):
        assert main(["snapshot", "-o", str(out)]) == 2
        assert why in capsys.readouterr().err
    assert await asyncio.to_thread(main, ["snapshot", "http://127.0.0.1:9", "-o", str(tmp_path / "b.json.gz")]) == 1
    assert "is this the admin port" in capsys.readouterr().err
    assert not (tmp_path / "b.json.gz").exists()
