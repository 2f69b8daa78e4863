"""The live page in a real Chromium: the states of a proxy as a reader sees them and a screen reader is told them."""

import sys
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Locator, expect

from proxy.core.replica import ReplicaPhase
from proxy.serving.access import AdminAccess
from tests.integration.serving.harness import phases, until
from tests.observability.browser import Tab, chromium, tab
from tests.observability.page_stage import leave, staged
from tests.support.redis_server import redis_server

pytestmark = pytest.mark.observability

TOKEN = "correct-horse-battery"
HOSTILE = '<img src=x onerror=document.title="taken">'
PHONE = {"width": 390, "height": 844}
CONTRAST = (Path(__file__).parent / "contrast.js").read_text("utf-8")
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def headline(found: Tab) -> Locator:
    return found.page.get_by_role("heading", level=2).first


def cards(found: Tab) -> Locator:
    return found.page.locator("#replicas").get_by_role("listitem")


def decisions(found: Tab) -> Locator:
    return found.page.get_by_role("list", name="Decisions, the latest first")


async def test_idle() -> None:
    async with staged() as stage, chromium() as browser, tab(browser, stage.url) as found:
        await expect(headline(found)).to_have_text("Idle: nobody is served, nobody waits.")
        await expect(cards(found)).to_have_count(2)
        await expect(cards(found).first).to_contain_text("0 % measured")
        await expect(found.page.get_by_text("2 of 2 serve")).to_be_visible()
        await expect(found.page.get_by_role("table", name="By class")).to_contain_text("Nobody waits.")
        for role in ("banner", "main", "contentinfo"):
            await expect(found.page.get_by_role(role)).to_have_count(1)  # type: ignore[arg-type]
        await found.shot("idle")
        for scheme in SCHEMES:
            async with tab(browser, stage.url, **PHONE, scheme=scheme) as phone:
                await expect(cards(phone)).to_have_count(2)
                await phone.shot(f"idle-phone-{scheme}")
                assert await phone.overflow() == 0
                assert phone.complaints == []
        assert found.complaints == []


async def test_healthy_load_then_more_than_fits() -> None:
    async with staged() as stage, chromium() as browser, tab(browser, stage.url) as found:
        few = await stage.ask(4, tokens=1200)
        await expect(headline(found)).to_have_text("4 requests are being served, nobody waits.")
        await expect(decisions(found)).to_contain_text("Let in")
        await expect(decisions(found)).to_contain_text("Admitted at once to ")
        await expect(cards(found).first).to_contain_text("Room for more")
        await expect(found.page.get_by_role("img", name="of 256 KV blocks").first).to_be_visible()
        await found.shot("healthy")
        many = await stage.ask(30, tokens=1900)
        await expect(headline(found)).to_contain_text("requests wait, the oldest")
        await expect(headline(found)).to_contain_text("KV cache on 2 of 2")
        await expect(found.page.get_by_role("table", name="By class")).to_contain_text("batch")
        await expect(found.page.get_by_role("table", name="By tenant")).to_contain_text("globex")
        await expect(decisions(found)).to_contain_text("blocks short at the forecast peak")
        await expect(cards(found).first).to_contain_text("No room for the next in line: KV cache")
        await found.page.get_by_text("The same as a table").click()
        await expect(found.page.get_by_role("region", name="Replicas as a table").get_by_role("row")).to_have_count(3)
        looks = stage.proxy.services.ring
        await until(lambda: len(looks.after(0)) >= 5, "some looks")
        await found.shot("saturated")
        for scheme in SCHEMES:
            async with tab(browser, stage.url, **PHONE, scheme=scheme) as phone:
                await expect(headline(phone)).to_contain_text("requests wait")
                line = await phone.page.locator("#fleet-chart path").first.get_attribute("d")
                assert line is not None
                assert line.count("L") >= 4  # loaded anew, it shows what was
                await phone.shot(f"saturated-phone-{scheme}")
                assert await phone.overflow() == 0
            async with tab(browser, stage.url, scheme=scheme) as other:
                await expect(headline(other)).to_contain_text("requests wait")
                await expect(decisions(other)).to_contain_text("Held")
                assert await other.page.evaluate(CONTRAST) == []
                await other.shot(f"saturated-{scheme}")
        await leave([*few, *many])
        await stage.proxy.until_idle(*stage.mocks)
        assert found.complaints == []


async def test_a_replica_down() -> None:
    async with staged(replicas=3) as stage, chromium() as browser, tab(browser, stage.url) as found:
        await expect(found.page.get_by_text("3 of 3 serve")).to_be_visible()
        streams = await stage.ask(2, tokens=1500)
        await stage.doomed.aclose()
        await until(lambda: phases(stage.proxy)[2] is ReplicaPhase.UNREACHABLE, "it to be missed")
        name = list(stage.proxy.services.watchers)[2]
        await expect(found.page.get_by_role("list", name="Notices")).to_contain_text(
            f"Error Replicas that answer nothing: {name}."
        )
        await expect(found.page.get_by_text("2 of 3 serve")).to_be_visible()
        await expect(cards(found).nth(2)).to_contain_text("✕ unreachable")
        await expect(cards(found).nth(2)).to_contain_text("Does not answer: nobody is sent there")
        await expect(found.page.get_by_role("status").first).to_contain_text("1 of 3 replicas does not serve.")
        await found.page.get_by_label("Order").select_option("trouble first")
        await expect(cards(found).first).to_contain_text(name)
        await found.shot("replica-down")
        async with tab(browser, stage.url, **PHONE) as phone:
            await expect(cards(phone).nth(2)).to_contain_text("unreachable")
            await phone.shot("replica-down-phone")
        for scheme in SCHEMES:
            async with tab(browser, stage.url, scheme=scheme) as other:
                await expect(cards(other).nth(2)).to_contain_text("unreachable")
                assert await other.page.evaluate(CONTRAST) == []
        await leave(streams)
        assert found.complaints == []


async def test_redis_down() -> None:
    with redis_server() as server:
        async with staged(redis_url=server.url) as stage, chromium() as browser, tab(browser, stage.url) as found:
            await expect(found.page.locator("#store")).to_have_text("sharing")
            streams = await stage.ask(3, tokens=1500)
            await expect(headline(found)).to_contain_text("3 requests are being served")
            server.stop()
            await expect(found.page.locator("#store")).to_have_text("degraded")
            notices = found.page.get_by_role("list", name="Notices")
            await expect(notices).to_contain_text("The shared store has been out of reach")
            await expect(notices).to_contain_text("this proxy fills only its own share of every replica")
            await found.shot("redis-down")
            async with tab(browser, stage.url, scheme="dark") as dark:
                await expect(dark.page.locator("#store")).to_have_text("degraded")
                assert await dark.page.evaluate(CONTRAST) == []
                await dark.shot("redis-down-dark")
            await leave(streams)
            assert found.complaints == []


async def test_kvgate_gone_is_told() -> None:
    async with staged() as stage, chromium() as browser, tab(browser, stage.url) as found:
        await expect(cards(found)).to_have_count(2)
        await found.page.route("**/admin/live*", lambda route: route.abort())
        await expect(found.page.locator("#link")).to_contain_text("✕ no answer, as of")
        await found.page.unroute("**/admin/live*")
        await expect(found.page.locator("#link")).to_have_text("● live")
        await found.page.get_by_role("button", name="Pause").click()
        await expect(found.page.locator("#link")).to_have_text("paused")
        await expect(found.page.get_by_role("button", name="Pause")).to_have_attribute("aria-pressed", "true")


async def test_sixty_four_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    async with staged(replicas=4, engines=16) as stage, chromium() as browser, tab(browser, stage.url) as found:
        await expect(cards(found)).to_have_count(64)
        await expect(found.page.get_by_text("64 of 64 serve")).to_be_visible()
        streams = await stage.ask(96, tokens=1900)
        await expect(headline(found)).to_contain_text("96 requests are being served")
        await found.shot("64-replicas")
        await found.page.get_by_label("Find").fill("#15")
        await expect(cards(found)).to_have_count(4)
        await found.page.get_by_label("Find").fill("")
        await expect(cards(found)).to_have_count(64)
        before = len(stage.proxy.services.ring.after(0))
        await until(lambda: len(stage.proxy.services.ring.after(0)) >= before + 5, "some more looks")
        tasks = await found.page.evaluate("window.longTasks")
        with capsys.disabled():
            sys.stdout.write(f"\n64 replicas: long tasks of the page in ms: {[round(one) for one in tasks]}\n")
        async with tab(browser, stage.url, **PHONE, scheme="dark", still=True) as phone:
            await expect(cards(phone)).to_have_count(64)
            assert await phone.overflow() == 0
            assert (
                await phone.page.evaluate("getComputedStyle(document.querySelector('rect.measured')).transitionDuration") == "0s"
            )
            await phone.shot("64-replicas-phone")
        await leave(streams)
        assert found.complaints == []


async def test_hostile_names_stay_text() -> None:
    async with staged() as stage, chromium() as browser, tab(browser, stage.url) as found:
        streams = await stage.ask(24, tokens=1900, tenants=(HOSTILE, f"{HOSTILE}2"))
        await stage.proxy.wire.chat({"x-tenant": HOSTILE}, model=HOSTILE)
        await expect(found.page.get_by_role("table", name="By tenant")).to_contain_text(HOSTILE)
        await expect(decisions(found)).to_contain_text(HOSTILE)
        await found.shot("hostile")
        assert await found.page.locator("img").count() == 0
        assert "kvgate" in await found.page.title()
        assert await found.overflow() == 0
        await leave(streams)
        assert found.complaints == []


async def test_switches_need_the_token() -> None:
    async with staged() as stage, chromium() as browser, tab(browser, stage.url) as found:
        page, (name, other) = found.page, stage.proxy.services.watchers
        await expect(cards(found)).to_have_count(2)
        await page.get_by_role("button", name="Switches…").click()
        await expect(page.get_by_text("This kvgate has no admin token")).to_be_visible()
        await expect(page.get_by_role("button", name="Do it")).to_be_disabled()
        await page.keyboard.press("Escape")
        stage.proxy.services.access = AdminAccess(TOKEN)
        await expect(page.get_by_role("dialog")).to_be_hidden()
        await page.wait_for_function("fetch('/admin/live').then((reply) => reply.json()).then((told) => told.changes_open)")
        await page.wait_for_timeout(1500)  # two of its own questions
        await page.get_by_role("button", name="Switches…").click()
        await page.get_by_label("Replica", exact=True).select_option(name)
        await page.get_by_role("button", name="Do it").click()
        await expect(page.locator("#switch-answer")).to_have_text("Say why: who finds it at night has to know.")
        await page.get_by_label("Why").fill("driver update")
        await page.get_by_label("Admin token").fill("wrong-horse-battery-s")
        await page.get_by_role("button", name="Do it").click()
        await expect(page.locator("#switch-answer")).to_contain_text("This needs the admin token")
        assert not stage.proxy.services.watchers[name].draining
        await page.get_by_label("Admin token").fill(TOKEN)
        await found.shot("switches")
        await page.get_by_role("button", name="Do it").click()
        await expect(page.locator("#switch-answer")).to_have_text("Done.")
        assert stage.proxy.services.watchers[name].draining
        assert not stage.proxy.services.watchers[other].draining
        await page.get_by_label("What", exact=True).select_option("Resume a replica")
        await page.get_by_role("button", name="Do it").click()
        await until(lambda: not stage.proxy.services.watchers[name].draining, "its return")
        await page.get_by_label("What", exact=True).select_option("Set the mode")
        await page.get_by_label("Mode", exact=True).select_option("observe")
        await page.get_by_role("button", name="Do it").click()
        await page.get_by_role("button", name="Close").click()
        await expect(page.locator("#mode")).to_contain_text("observe (by hand")
        assert (
            await page.evaluate("Object.keys(localStorage).length + Object.keys(sessionStorage).length + document.cookie.length")
            == 0
        )
        assert [text for text in found.complaints if "401" not in text] == []


async def test_by_keyboard() -> None:
    async with staged() as stage, chromium() as browser, tab(browser, stage.url) as found:
        await expect(cards(found)).to_have_count(2)
        reached = []
        while await found.page.evaluate("document.activeElement !== document.body") or not reached:
            await found.page.keyboard.press("Tab")
            reached.append(await found.page.evaluate("document.activeElement.id || document.activeElement.className"))
            if not reached[-1]:
                continue  # a link
            assert await found.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        assert [one for one in reached if one][:5] == ["skip", "pause", "open-switches", "find", "order"]
        assert "decisions" in reached
        await found.page.get_by_role("button", name="Switches…").focus()
        await found.page.keyboard.press("Enter")
        await expect(found.page.get_by_role("dialog", name="Switches")).to_be_visible()
        await found.page.keyboard.press("Escape")
        await expect(found.page.get_by_role("button", name="Switches…")).to_be_focused()


async def test_a_screen_reader_is_told_seldom() -> None:
    """The live region follows the headline at once to another level, and otherwise once a minute at most."""
    async with staged() as stage, chromium() as browser, tab(browser, stage.url) as found:
        await expect(found.page.locator("#said")).to_have_text("Idle: nobody is served, nobody waits.")
        assert await found.page.locator("#said").get_attribute("aria-live") == "polite"
        streams = await stage.ask(2, tokens=600)
        await expect(headline(found)).to_have_text("2 requests are being served, nobody waits.")
        assert await found.page.locator("#said").text_content() == "Idle: nobody is served, nobody waits."
        await leave(streams)


async def test_a_restart_begins_anew() -> None:
    async with staged() as stage, chromium() as browser, tab(browser, stage.url) as found:
        assert (await stage.proxy.wire.chat(max_tokens=2)).status == 200
        await expect(decisions(found).get_by_role("listitem")).to_have_count(1)
        report = await found.page.evaluate("fetch('/admin/live').then((reply) => reply.json())")
        fresh = report | {"run": "another", "decisions": [], "samples": [], "ended": 0, "headline": "Another run."}
        await found.page.route("**/admin/live*", lambda route: route.fulfill(json=fresh))
        await expect(headline(found)).to_have_text("Another run.")
        await expect(decisions(found).get_by_role("listitem")).to_have_count(0)
        assert found.complaints == []
