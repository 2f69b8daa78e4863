"""A policy file that changes while requests run: what is saved rules, what is bad changes nothing, and nobody is failed."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.adapters.file_watch import FileWatch
from proxy.core.outcome import Outcome
from proxy.serving.access import AdminAccess
from proxy.serving.policy_watch import PolicyWatch
from proxy.sim.step_time import StepTimeModel
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import FAST_SCRAPES, RunningProxy, admin_of, proxying, until, url_of


def saved(policy: Mapping[str, Any]) -> bytes:
    return yaml.safe_dump(FAST_SCRAPES | dict(policy)).encode()


def take(proxy: RunningProxy, policy: Mapping[str, Any]) -> bool:
    return proxy.services.live.take(saved(policy), 1.0)


async def test_who_waits_and_who_runs_keep_what_they_came_with() -> None:
    """A class, a deadline and a queue bound that are gone meanwhile take nobody out."""
    small = settings(engine={"num_gpu_blocks": 20, "max_model_len": 300}, step_time=StepTimeModel(speed=3))
    policy = {"classes": [{"name": "early", "deadline": "20s"}], "queue": {"requests_max": 5}}
    async with running(small) as mock, proxying(url_of(mock), policy=policy) as proxy:
        gate = proxy.services.dispatcher.gate
        stream = await proxy.wire.start_chat(max_tokens=280, stream=True, ignore_eos=True)
        await stream.reader.readuntil(b"data: ")
        waiting = await proxy.wire.start_chat(max_tokens=280)
        await until(lambda: len(gate.queue) == 1, "one who waits")
        assert take(proxy, {"classes": [{"name": "late", "deadline": "10ms"}], "queue": {"requests_max": 0}})
        assert len(gate.queue) == 1
        refused = (await proxy.wire.chat(max_tokens=280)).headers["x-kvgate-outcome"]
        assert refused in {"queue_full", "queue_timeout"}  # either is the new class: 10 ms are over when a busy machine reads it
        assert proxy.records[-1].traffic_class == "late"
        assert (await waiting.reply()).status == 200
        assert (proxy.records[-1].traffic_class, proxy.records[-1].outcome) == ("early", Outcome.COMPLETED)
        await stream.leave()
        await proxy.until_idle(mock)


async def test_who_waits_goes_when_enforcing_ends() -> None:
    small = settings(engine={"num_gpu_blocks": 20, "max_model_len": 300}, step_time=StepTimeModel(speed=5))
    async with running(small) as mock, proxying(url_of(mock)) as proxy:
        streams = [await proxy.wire.start_chat(max_tokens=280, ignore_eos=True) for _ in range(3)]
        await until(lambda: len(proxy.services.dispatcher.gate.queue) == 2, "two who wait")
        assert take(proxy, {"mode": "observe"})
        assert (proxy.services.dispatcher.gate.mode, len(proxy.services.dispatcher.gate.queue)) == ("observe", 0)
        assert [(await stream.reply()).status for stream in streams] == [200] * 3
        await proxy.until_idle(mock)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"mode: enforced\n", "policy.yaml:1:7: mode: got \"enforced\""),
        (b"mode: [\n", "policy.yaml:"),
        (b"mode: \xff\n", "no UTF-8"),
        (b"", "an empty file"),
        (b"replicas: [{url: 'http://h:1', api_key_env: KVGATE_NOT_SET_ANYWHERE}]\n", None),
    ],
    ids=["a wrong word", "no YAML", "no text", "empty", "flags win"],
)  # fmt: skip
async def test_a_bad_file_changes_nothing_and_is_told(text: bytes, told: str | None) -> None:
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy:
        live = proxy.services.live
        version = live.version
        assert live.take(text, 1.0) is (told is None)
        assert (live.version == version) is (told is not None)
        ready = (await proxy.wire.request("GET", "/ready")).json()
        assert ready["ready"]
        assert [told in fault for fault in ready["policy"]["faults"]] == ([True] if told else [])
        result = "bad" if told else "good"
        assert proxy.metric(f'kvgate_policy_reloads_total{{result="{result}"}}') == 1.0
        assert proxy.metric("kvgate_policy_faults") == float(told is not None)
        assert proxy.metric(f'kvgate_policy_info{{version="{live.version}"}}') == 1.0
        assert proxy.metric("kvgate_policy_last_good_timestamp_seconds") > 1.6e9
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        assert take(proxy, {})
        assert (await proxy.wire.request("GET", "/ready")).json()["policy"] == {
            "version": version, "faults": [], "at_restart": []
        }  # fmt: skip
        await proxy.until_idle(mock)


async def test_a_key_that_is_not_there_makes_a_bad_file() -> None:
    async with running(settings()) as mock, proxying(policy={"replicas": [url_of(mock)]}) as proxy:
        bad = {"replicas": [{"url": url_of(mock), "api_key_env": "KVGATE_NOT_SET_ANYWHERE"}]}
        assert not take(proxy, bad)
        assert "KVGATE_NOT_SET_ANYWHERE" in proxy.services.live.faults[0]
        assert not take(proxy, {})
        assert "no replica to forward to" in proxy.services.live.faults[0]
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        await proxy.until_idle(mock)


async def test_the_inside_port_tells_what_a_policy_would_change() -> None:
    first = {"classes": [{"name": "a", "match": {"model": "m"}, "deadline": "5s"}]}
    async with (
        running(settings()) as mock,
        proxying(policy=first | {"replicas": [{"url": url_of(mock), "name": "one"}]}) as proxy,
    ):
        proxy.services.access = AdminAccess("secret")
        fields = {"x-kvgate-admin-token": "secret"}
        second = {
            "classes": [{"name": "b", "match": {"model": "x"}}, {"name": "a", "match": {"model": "m"}, "deadline": "7s"}],
            "queue": {"wait_max": "9s"}, "store": {"beat": "100ms"}, "replicas": [{"url": "http://other:1", "name": "two"}],
        }  # fmt: skip
        version = proxy.services.live.version
        async with admin_of(proxy) as admin:
            assert (await admin.request("POST", "/admin/policy?dry_run=1", saved(second))).status == 401
            reply = (await admin.request("POST", "/admin/policy?dry_run=1", saved(second), fields)).json()
            changed = {change["key"]: (change["old"], change["new"]) for change in reply["changes"]}
            assert changed == {
                "replicas.one": ("there", None), "replicas.two": (None, "there"), "classes.b": (None, "there"),
                "classes.a.deadline": ("5.0", "7.0"), "queue.wait_max": ("30.0", "9.0"), "store.beat": ("0.25", "0.1"),
            }  # fmt: skip
            assert reply["at_restart"] == ["store.beat"]
            assert reply["replicas"] == {"added": ["two"], "removed": ["one"], "changed": []}
            bad = await admin.request("POST", "/admin/policy?dry_run=1", b"\nmode: x\n", fields)
            assert (bad.status, bad.json()["good"]) == (422, False)
            assert "policy.yaml:2:7: mode" in bad.json()["faults"][0]
            refused = await admin.request("POST", "/admin/policy", saved(second), fields)
            assert (refused.status, "changed in its file" in refused.json()["error"]["message"]) == (405, True)
            shown = (await admin.request("GET", "/admin/policy")).json()
            assert (shown["version"], shown["faults"], shown["replicas"]) == (version, [], ["one"])
        assert proxy.services.live.version == version
        await proxy.until_idle(mock)


async def test_a_saved_file_rules_within_a_second_and_on_demand(tmp_path: Path) -> None:
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy:
        path = tmp_path / "policy.yaml"
        path.write_bytes(saved({}))
        watch = PolicyWatch(FileWatch(path), proxy.services.live, proxy.services.guard)
        task = asyncio.create_task(watch.run())
        path.write_bytes(saved({"queue": {"requests_max": 7}}))
        await until(lambda: proxy.services.policy.queue.requests_max == 7, "the saved policy")
        path.unlink()
        await until(lambda: proxy.services.live.faults, "a file that is gone")
        assert "no such file" in proxy.services.live.faults[0]
        assert proxy.services.policy.queue.requests_max == 7
        path.write_bytes(saved({"queue": {"requests_max": 8}}))
        watch.reload()
        await until(lambda: proxy.services.policy.queue.requests_max == 8, "the policy that was asked for")
        assert dict(proxy.services.live.reloads) == {"good": 2, "bad": 1}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await proxy.until_idle(mock)


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


async def test_a_fault_of_our_own_is_told_and_the_next_change_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy.yaml"
    write(path, saved({}).decode())
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy:
        live = proxy.services.live
        watch = PolicyWatch(FileWatch(path), live, proxy.services.guard)
        task = asyncio.create_task(watch.run())
        with monkeypatch.context() as planted:
            planted.setattr(live, "judge", lambda _: 1 // 0)
            watch.reload()
            await until(lambda: live.faults, "a fault of our own")
        assert "a fault of kvgate's own" in live.faults[0]
        assert proxy.metric('kvgate_internal_errors_total{part="feed"}') == 1.0
        write(path, saved({"queue": {"requests_max": 9}}).decode())
        await until(lambda: proxy.services.policy.queue.requests_max == 9, "the next policy")
        assert not live.faults
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await proxy.until_idle(mock)


async def test_keys_are_read_anew_when_asked_for(tmp_path: Path) -> None:
    path, key = tmp_path / "policy.yaml", tmp_path / "key"
    write(key, "one")
    async with running(settings()) as mock:
        policy = {"replicas": [{"url": url_of(mock), "name": "gpu", "api_key_file": str(key)}]}
        write(path, saved(policy).decode())
        async with proxying(policy=policy) as proxy:
            live = proxy.services.live
            watch = PolicyWatch(FileWatch(path), proxy.services.live, proxy.services.guard)
            task = asyncio.create_task(watch.run())
            write(key, "two")
            watch.reload()
            sent = lambda: proxy.services.upstream_headers("gpu", [])  # noqa: E731
            await until(lambda: sent() == [(b"authorization", b"Bearer two")], "the new key")
            assert (await proxy.wire.chat(max_tokens=2)).status == 200
            write(key, "")
            watch.reload()
            await until(lambda: live.faults, "a key that is gone")
            assert "should hold its API key and is empty" in live.faults[0]
            assert sent() == [(b"authorization", b"Bearer two")]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await proxy.until_idle(mock)


@pytest.mark.slow
async def test_a_hundred_reloads_under_load_fail_nobody() -> None:
    """Bounds, classes, margins and modes change all the time; a bad file now and then."""
    async with running(settings()) as one, running(settings()) as two, proxying(url_of(one), url_of(two)) as proxy:
        done = asyncio.Event()

        async def client(number: int) -> int:
            answered = 0
            while not done.is_set():
                fields = {"max_tokens": 5 + (number * 7 + answered) % 40, "ignore_eos": True, "stream": answered % 2 == 0}
                reply = await proxy.wire.chat(**fields)
                assert (reply.status, reply.whole) == (200, True), reply
                answered += 1
            return answered

        clients = [asyncio.create_task(client(number)) for number in range(8)]
        for turn in range(100):
            policy: dict[str, Any] = {
                "mode": ("enforce", "enforce", "observe", "enforce", "off")[turn % 5],
                "classes": [{"name": f"class-{turn % 3}", "priority": turn % 4}],
                "queue": {"requests_max": 50 + turn}, "budget": {"z_min": 0.5 + turn / 200},
                "scrape": {"interval": f"{50 + turn % 7}ms"},
            }  # fmt: skip
            assert take(proxy, policy | ({} if turn % 10 else {"mode": "nonsense"})) is bool(turn % 10)
            seen = len(proxy.records)
            await until(lambda seen=seen: len(proxy.records) >= seen + 5, "some answers")  # type: ignore[misc]
        done.set()
        counts = await asyncio.gather(*clients)
        assert sum(counts) >= 500
        assert {record.outcome for record in proxy.records} == {Outcome.COMPLETED}
        assert proxy.metric('kvgate_internal_errors_total{part="gate"}') == 0.0
        await proxy.until_idle(one, two)
