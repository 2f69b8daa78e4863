"""The live page's parts and feed over HTTP: what they carry, who may, and what it costs with 64 replicas."""

import re

from starlette.routing import Route

from proxy.serving.access import AdminAccess
from proxy.serving.admin import admin_app
from proxy.serving.admin_live import PARTS
from proxy.serving.live_view import TENANTS_MAX, WAITING_MAX
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import admin_of, proxying, until, url_of
from tests.integration.serving.test_modes import leave_all, small

TENANTS = {"tenants": {"from": "header", "header": "x-tenant"}}


async def test_the_page_is_of_one_piece_and_locked_in() -> None:
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy, admin_of(proxy) as admin:
        page = await admin.request("GET", "/")
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        told = page.headers["content-security-policy"].split("; ")
        assert {
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "frame-ancestors 'none'",
        } <= set(told)
        assert "unsafe" not in page.headers["content-security-policy"]
        assert page.headers["x-content-type-options"] == "nosniff"
        named = set(re.findall(r'(?:src|href)="([^"#][^"]*)"', page.body.decode()))
        assert named == {"data:,", "/page/style.css", "/page/main.js", "/admin/live"}
        assert not re.search(r"<script[^>]*>[^<]|<style|\son[a-z]+=|\sstyle=", page.body.decode())
        for name, kind in PARTS.items():
            part = await admin.request("GET", f"/page/{name}")
            assert (part.status, part.headers["content-type"]) == (200, kind)
            assert not re.search(
                rb"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|localStorage", part.body
            )
            assert set(re.findall(rb"https?://[^\s\"'`)]+", part.body)) <= {b"http://www.w3.org/2000/svg"}
        for name in ("nothing.js", "..%2Fadmin_live.py", "index.html"):
            assert (await admin.request("GET", f"/page/{name}")).status == 404


async def test_a_number_that_is_none_is_refused() -> None:
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy, admin_of(proxy) as admin:
        for query in ("samples_after=-1", "samples_after=x", "ended_after=1.5", f"ended_after={2**53}", "samples_after="):
            reply = await admin.request("GET", f"/admin/live?{query}")
            assert (reply.status, reply.json()["error"]["code"]) == (400, "invalid_value"), query


async def test_the_feed_tells_queue_replicas_and_decisions_and_is_cut() -> None:
    async with small(TENANTS) as (mocks, proxy), admin_of(proxy) as admin:
        gate = proxy.services.dispatcher.gate
        exchanges = []
        for index in range(TENANTS_MAX + 14):
            fields = {"max_tokens": 1800, "ignore_eos": True, "stream": True}
            exchanges.append(await proxy.wire.start_chat({"x-tenant": f"t{index}"}, **fields))
        await until(lambda: gate.open_requests + len(gate.queue) == len(exchanges), "all of them")
        ring = proxy.services.ring
        before = len(ring.after(0))
        await until(lambda: len(ring.after(0)) > before, "a look")
        told = (await admin.request("GET", "/admin/live")).json()
        queue, (replica,) = told["queue"], told["replicas"]
        assert queue["requests"] == len(gate.queue) > WAITING_MAX
        assert queue["classes"] == [{"name": "default", "requests": len(gate.queue), "tokens": gate.queue.tokens}]
        assert len(queue["tenants"]) + queue["tenants_more"] == len(gate.queue)
        assert (len(queue["tenants"]), len(queue["waiting"])) == (TENANTS_MAX, WAITING_MAX)
        assert queue["waiting_more"] == len(gate.queue) - WAITING_MAX
        assert (replica["binding"], replica["binds"], replica["capacity_blocks"]) == ("kv", True, 128)
        assert 0 < replica["forecast_peak_blocks"] <= 128
        assert told["headline"].endswith("What binds: KV cache on 1 of 1.")
        assert {one["kind"] for one in told["decisions"]} == {"admitted", "held"}
        last = told["samples"][-1]["seq"]
        again = (await admin.request("GET", f"/admin/live?samples_after={last}")).json()
        assert len(again["samples"]) <= 2
        assert again["run"] == told["run"]
        await leave_all(exchanges)
        await proxy.until_idle(*mocks)
        assert gate.queue.by_tenant == {}


async def test_refusals_are_told_in_words_and_nothing_of_the_content() -> None:
    async with small({"queue": {"requests_max": 0}} | TENANTS) as (_, proxy), admin_of(proxy) as admin:
        reply = await proxy.wire.complete({"x-tenant": "acme"}, prompt="secret " * 2500, max_tokens=1)
        assert reply.status == 400
        told = await admin.request("GET", "/admin/live")
        (line,) = told.json()["decisions"]
        assert (line["kind"], line["tenant"], line["replica"]) == ("shed", "acme", "")
        assert line["words"].startswith("Refused (never_fits): ")
        assert line["request_id"] == reply.headers["x-request-id"]
        assert told.json()["ended"] == 1
        assert b"secret" not in told.body
        assert (await admin.request("GET", "/admin/live?ended_after=1")).json()["decisions"] == []


async def test_every_call_that_changes_something_needs_the_token() -> None:
    """Whatever route the admin port has or gets: no method but GET is let in without the token."""
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy, admin_of(proxy) as admin:
        routes = [route for route in admin_app(proxy.services, proxy.endpoints).routes if isinstance(route, Route)]
        changing = {(method, route.path) for route in routes for method in route.methods or () if method not in {"GET", "HEAD"}}
        known = {("POST", "/admin/mode"), ("DELETE", "/admin/mode"), ("POST", "/admin/drains"), ("DELETE", "/admin/drains")}
        assert known < changing
        for method, path in changing | {("GET", "/admin/record")}:  # which costs memory, and tells who asks how much
            proxy.services.access = AdminAccess()
            assert (await admin.request(method, path, b"{}")).status == 403, (method, path)
            proxy.services.access = AdminAccess("correct-horse-battery")
            assert (await admin.request(method, path, b"{}")).status == 401, (method, path)
            wrong = {"authorization": "Bearer wrong", "x-kvgate-admin-token": "wrong"}
            assert (await admin.request(method, path, b"{}", wrong)).status == 401, (method, path)
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            for path in ("/", "/page/main.js", "/admin/live", "/admin/state", "/metrics"):
                assert (await admin.request(method, path, b"{}")).status == 405, (method, path)
