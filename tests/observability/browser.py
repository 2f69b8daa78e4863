"""A real Chromium, the system's, driven through playwright: pages that keep what their scripts complain about."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from playwright.async_api import Browser, Page, async_playwright, expect

SHOTS = "KVGATE_SCREENSHOTS"  # a folder to write screenshots to; without it none are kept
LOOK_MS = 60_000  # a machine may be busy: nothing waits as long when it is right

LONG_TASKS = """
window.longTasks = [];
new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((one) => one.duration))).observe({ type: "longtask" });
"""

expect.set_options(timeout=LOOK_MS)


def chromium_binary() -> str:
    """Path of the browser. Raises RuntimeError where there is none: a missing part is a failure, not a skip."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        raise RuntimeError("chromium is not installed: apt-get install chromium. `make test` does without")
    return found


@dataclass(slots=True)
class Tab:
    """One page. ``complaints`` are errors of its scripts and of its policy, and what it asked anybody else for."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    async def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        wider: int = await self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return wider

    async def shot(self, name: str) -> None:
        """Keep a screenshot of the whole page, if somebody wants any."""
        folder = os.environ.get(SHOTS)
        if folder:
            await self.page.screenshot(path=f"{folder}/{name}.png", full_page=True)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """The browser until the block ends."""
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium_binary(), args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def tab(
    browser: Browser, url: str, *, width: int = 1280, height: int = 900, scheme: Literal["light", "dark"] = "light",
    still: bool = False,
) -> AsyncIterator[Tab]:  # fmt: skip
    """A page that has been loaded. ``still``: its reader wants no motion."""
    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce" if still else "no-preference"
    )
    page = await context.new_page()
    await page.add_init_script(LONG_TASKS)
    found = Tab(page)
    page.on("pageerror", lambda error: found.complaints.append(f"script: {error}"))
    page.on("console", lambda said: found.complaints.append(said.text) if said.type in {"error", "warning"} else None)
    page.on("request", lambda asked: None if asked.url.startswith((url, "data:")) else found.complaints.append(asked.url))
    try:
        await page.goto(url)
        yield found
    finally:
        await context.close()
