"""Replicas that a source tells of, in a proxy that serves."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.adapters import discovery_file
from proxy.serving import discovery
from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import FAST_SCRAPES, RunningProxy, proxying, until, url_of


def write(path: Path, *mocks: RunningMock | str) -> None:
    path.write_text(json.dumps([one if isinstance(one, str) else url_of(one) for one in mocks]), encoding="utf-8")


@asynccontextmanager
async def discovering(policy: dict[str, Any]) -> AsyncIterator[RunningProxy]:
    async with proxying(policy=policy, probed=False) as proxy:
        task = asyncio.create_task(proxy.services.discoverer.run())
        try:
            yield proxy
        finally:
            assert not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def names(proxy: RunningProxy, *mocks: RunningMock) -> None:
    wanted = {url_of(mock).removeprefix("http://") for mock in mocks}
    await until(lambda: {one.name for one in proxy.services.serving()} == wanted, f"{wanted} serving")


async def test_replicas_come_and_go_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "AGAIN_S_MIN", 0.02)
    path = tmp_path / "replicas.json"
    async with running(settings()) as one, running(settings()) as two, discovering({"discovery": {"file": str(path)}}) as proxy:
        state = proxy.services.discoverer.state
        await until(lambda: (found := state()) and found.fault, "a fault while there is no file")
        assert (await proxy.wire.request("GET", "/ready")).status == 503
        write(path, one)
        await names(proxy, one)
        await until(lambda: not proxy.services.loading(), "the tokenizer")
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        assert (await proxy.wire.request("GET", "/ready")).json()["discovery"]["fault"] is None
        write(path, one, two)
        await names(proxy, one, two)
        assert proxy.metric("kvgate_discovery_replicas") == 2.0
        assert proxy.metric("kvgate_discovery_age_seconds") < 5.0
        write(path, "nonsense")
        await until(lambda: (found := state()) and found.fault, "a bad file")
        shown = (await proxy.wire.request("GET", "/ready")).json()["discovery"]
        assert ("replicas.json:1:2" in shown["fault"], shown["replicas"]) == (True, 2)
        assert len(proxy.services.serving()) == 2  # what it told last stands
        write(path, two)
        await names(proxy, two)
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        await proxy.until_idle(one, two)


async def test_a_policy_that_changes_adds_to_the_source_or_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "replicas.json"
    async with running(settings()) as one, running(settings()) as two:
        write(path, one)
        found = {"discovery": {"file": str(path), "replica": {"headers": {"x-house": "1"}}}}
        async with discovering(found) as proxy:
            await names(proxy, one)
            assert proxy.services.upstream_headers(next(iter(proxy.services.watchers)), []) == [(b"x-house", b"1")]

            def take(policy: dict[str, Any]) -> bool:
                return proxy.services.live.take(yaml.safe_dump(FAST_SCRAPES | policy).encode(), 1.0)

            assert take(found | {"replicas": [url_of(two)]})
            await names(proxy, one, two)
            assert take({"replicas": [url_of(two)]})
            await names(proxy, two)
            assert proxy.services.discoverer.state() is None
            assert take(found)
            await names(proxy, one)
            assert not take({})
            assert "no replica to forward to" in proxy.services.live.faults[0]
            await proxy.until_idle(one, two)


async def test_one_that_is_listed_and_told_of_is_one_replica(tmp_path: Path) -> None:
    path = tmp_path / "replicas.json"
    async with running(settings()) as one:
        write(path, one)
        listed = {"replicas": [{"url": url_of(one), "name": "mine"}], "discovery": {"file": str(path)}}
        async with discovering(listed) as proxy:
            await until(lambda: proxy.services.replicas.discovered, "what the file tells")
            await until(lambda: [watcher.name for watcher in proxy.services.serving()] == ["mine"], "one replica")
            await proxy.until_idle(one)


async def test_a_fault_of_our_own_in_a_source_is_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "AGAIN_S_MIN", 0.02)
    path = tmp_path / "replicas.json"
    async with running(settings()) as one:
        write(path, one)
        with monkeypatch.context() as planted:
            planted.setattr(discovery_file, "parse_replicas", lambda *_: 1 // 0)
            async with discovering({"discovery": {"file": str(path)}}) as proxy:
                await until(lambda: (found := proxy.services.discoverer.state()) and found.fault, "a fault")
                planted.undo()
                await names(proxy, one)
                assert proxy.metric('kvgate_internal_errors_total{part="feed"}') >= 1.0
                await proxy.until_idle(one)
