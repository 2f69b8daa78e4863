"""What the admin port tells of single requests: that served at once, that which waited, was refused, left, was rerouted or is open."""

import json
from typing import Any
from urllib.parse import quote

import pytest

from tests.integration.serving.harness import RunningProxy, Wire, admin_of, until
from tests.integration.serving.test_modes import LONG, fill, leave_all, small
from tests.integration.serving.test_reroutes import BROKEN, beside_a_faulty_one


async def asked(admin: Wire, query: str) -> list[dict[str, Any]]:
    reply = await admin.request("GET", f"/admin/requests{query}")
    assert reply.status == 200, reply
    found: list[dict[str, Any]] = reply.json()["requests"]
    return found


async def told(admin: Wire, request_id: str) -> dict[str, Any]:
    (one,) = await asked(admin, "/" + quote(request_id))
    return one


async def test_one_that_fits_is_told_with_what_it_met() -> None:
    async with small({}, replicas=2) as (mocks, proxy), admin_of(proxy) as admin:
        headers = {"x-request-id": "mine", "x-kvgate-tenant": "acme"}
        usage = {"include_usage": True}
        reply = await proxy.wire.chat(headers, max_tokens=8, ignore_eos=True, stream=True, stream_options=usage)
        assert reply.status == 200
        await proxy.until_idle(*mocks)
        one = await told(admin, "mine")
        assert (one["phase"], one["outcome"], one["status"], one["held"]) == ("ended", "completed", 200, None)
        assert one["request"]["tenant"] == "acme"
        assert one["request"]["streaming"] is True
        assert (one["tokens"]["source"], one["tokens"]["output"], one["tokens"]["output_max"]) == ("exact", 8, 8)
        assert one["tokens"]["prompt"] == one["tokens"]["prompt_engine"] > 0
        look = one["placed"]["replicas"][0]
        assert look["replica"] == one["replica"] in proxy.services.watchers
        assert look["bound_by"] == "none"
        assert 0.0 < look["headroom_ratio"] < 1.0
        assert look["peak_blocks"] + look["headroom_ratio"] * look["usable_blocks"] == pytest.approx(128, abs=0.1)
        assert 0.0 < one["forecast_blocks"]["mean"] <= one["forecast_blocks"]["ceiling"] < 10
        assert one["seconds"]["queue_wait"] <= one["seconds"]["ttft"] <= one["seconds"]["total"]
        assert one["reason"].startswith(f"Admitted at once to {one['replica']}")


async def test_one_that_waits_is_told_while_it_waits_and_after() -> None:
    async with small({}) as (mocks, proxy), admin_of(proxy) as admin:
        exchanges = await fill(proxy)
        late = await proxy.wire.start_chat({"x-request-id": "late"}, **LONG)
        await until(lambda: len(proxy.services.dispatcher.gate.queue) == 2, "two that wait")
        one = await told(admin, "late")
        assert (one["phase"], one["outcome"], one["replica"]) == ("waiting", None, None)
        assert one["held"]["ahead"] == 1
        first = (await asked(admin, "?outcome=open&last=2"))[1]
        assert (first["phase"], first["held"]["ahead"]) == ("waiting", 0)
        look = first["held"]["replicas"][0]
        assert look["bound_by"] in {"kv", "pacing", "prefill"}
        assert first["reason"].startswith("Waits ")
        running = await asked(admin, "?outcome=open&last=1000")
        assert [each["phase"] for each in running].count("running") == len(exchanges) - 1
        await leave_all(exchanges)
        await late.reader.readuntil(b"data: ")
        await late.leave()
        await proxy.until_idle(*mocks)
        one = await told(admin, "late")
        assert (one["outcome"], one["status"], one["held"]["ahead"]) == ("cancelled", 200, 1)
        assert one["seconds"]["queue_wait"] > 0.0
        assert "Waited" in one["reason"]
        assert "Admitted to" in one["reason"]
        left = [each for each in await asked(admin, "?outcome=cancelled&last=100") if each["held"] and each["held"]["replicas"]]
        assert left, "who left while it waited"
        assert left[0]["held"]["replicas"][0]["headroom_ratio"] < 1.0


async def test_a_refusal_is_told_with_its_numbers() -> None:
    async with small({"queue": {"requests_max": 1}}) as (mocks, proxy), admin_of(proxy) as admin:
        exchanges = await fill(proxy)
        assert (await proxy.wire.chat({"x-request-id": "full"}, max_tokens=900)).status == 429
        one = await told(admin, "full")
        assert (one["outcome"], one["status"], one["refused"]["policy_key"]) == ("queue_full", 429, "queue.requests_max")
        assert (one["refused"]["measured"], one["refused"]["limit"]) == (2, 1)
        assert one["forecast_blocks"]["ceiling"] > 50
        assert "The queue is full" in one["reason"]
        assert (await proxy.wire.chat({"x-request-id": "other"}, model="nobody's")).status == 404
        one = await told(admin, "other")
        assert (one["outcome"], one["placed"], one["held"]) == ("no_replica", None, None)
        await leave_all(exchanges)
        await proxy.until_idle(*mocks)


@pytest.mark.parametrize("mode", ["enforce", "off"])
async def test_a_reroute_is_told(mode: str) -> None:
    async with beside_a_faulty_one(BROKEN, {"mode": mode}) as (_, mock, proxy), admin_of(proxy) as admin:
        assert (await proxy.wire.chat({"x-request-id": "twice"}, max_tokens=3)).status == 200
        await proxy.until_idle(mock)
        one = await told(admin, "twice")
        assert one["tried"] == [{"replica": "bad", "failure": "status 500"}]
        assert (one["replica"], one["outcome"], one["mode"]) == ("good", "completed", mode)
        assert one["reason"].startswith("bad failed it (status 500), so it was placed anew.")


async def test_what_is_asked_wrongly_or_of_the_wrong_proxy() -> None:
    async with small({}) as (_, proxy), admin_of(proxy) as admin:
        for query in ("last=0", "last=x", "last=1001", "last=-1", "outcome=done"):
            assert (await admin.request("GET", f"/admin/requests?{query}")).status == 400
        gone = await admin.request("GET", "/admin/requests/nobody")
        assert (gone.status, gone.json()["error"]["code"]) == (404, "request_not_found")
        assert "ask the others too" in gone.json()["error"]["message"]
        other = await admin.request("GET", "/admin/requests/kvgate-elsewhere-1-9f-1a")
        assert "made by the proxy elsewhere-1-9f, not by this one" in other.json()["error"]["message"]
        ours = (await proxy.wire.chat(max_tokens=1)).headers["x-request-id"]
        assert (await told(admin, ours))["id"] == ours
        assert "ask the others too" in (await admin.request("GET", f"/admin/requests/{ours}0")).json()["error"]["message"]
        odd = "a/b?c=d%\"'é"
        reply = await proxy.wire.chat({"x-request-id": odd[:9]}, max_tokens=1)
        assert (await told(admin, odd[:9]))["id"] == reply.headers["x-request-id"]


async def test_many_under_one_id_and_by_tenant() -> None:
    async with small({}) as (_, proxy), admin_of(proxy) as admin:
        for index in range(4):
            tenant = ("acme", "other")[index % 2]
            assert (
                await proxy.wire.chat({"x-request-id": "same", "x-kvgate-tenant": tenant}, max_tokens=1 + index)
            ).status == 200
        found = await asked(admin, "/same")
        assert [one["tokens"]["output_max"] for one in found] == [4, 3, 2, 1], "the newest first"
        assert [one["tokens"]["output_max"] for one in await asked(admin, "?tenant=acme")] == [3, 1]
        assert [one["tokens"]["output_max"] for one in await asked(admin, "?tenant=acme&last=1&outcome=completed")] == [3]
        assert await asked(admin, "?tenant=acm") == []


async def test_the_record_of_observe_says_what_enforcing_would_have_done() -> None:
    async with small({"mode": "observe"}) as (mocks, proxy), admin_of(proxy) as admin:
        exchanges = [await proxy.wire.start_chat(max_tokens=1800, ignore_eos=True, stream=True) for _ in range(12)]
        await until(lambda: proxy.services.dispatcher.gate.open_requests == 12, "twelve at work")
        await leave_all(exchanges)
        await proxy.until_idle(*mocks)
        found = await asked(admin, "?last=12")
        would = [one for one in found if one["would"]]
        assert would
        assert would[0]["would"]["action"] == "hold"
        assert "Enforcing would have held it for about" in would[0]["reason"]
        assert {one["mode"] for one in found} == {"observe"}
        assert json.dumps(found)


async def test_decisions_since_a_number_are_those_that_are_new() -> None:
    async with small({}) as (_, proxy):
        decisions = proxy.services.decisions
        await _serve(proxy, 3)
        seen = decisions.ended_total
        assert (seen, decisions.since(seen)) == (3, [])
        await _serve(proxy, 2)
        assert [one.request_id for one in decisions.since(seen)] == ["0", "1"]
        assert len(decisions.since(0)) == len(decisions.packed()) == 5
        assert repr(decisions) == "<Decisions ended=5 of 5 open=0>"


async def _serve(proxy: RunningProxy, count: int) -> None:
    for index in range(count):
        assert (await proxy.wire.chat({"x-request-id": str(index)}, max_tokens=1)).status == 200
    proxy.services.ended.tell()
