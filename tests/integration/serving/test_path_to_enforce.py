"""The whole way under load, on a process: off, observe, report, five per cent, enforce, and off again. No request fails by it."""

import asyncio
import itertools
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import main
from proxy.core.observing import place_of
from proxy.sim.mock_text import TOKENIZER_DIRECTORY
from proxy.sim.step_time import StepTimeModel
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import Wire, until, url_of
from tests.integration.serving.test_serve_command import serve

pytestmark = pytest.mark.slow
CLIENTS = 24
ANSWERED = 60  # in each stage: every client more than twice
TENANTS = [f"tenant-{number}" for number in range(200)]
FILE = "mode: {mode}\nenforce_ratio: {ratio}\nqueue: {{wait_max: 10m}}\nscrape: {{interval: 100ms}}\n"


@dataclass(slots=True)
class Load:
    """Clients that each send the next request when the last one ended, as one tenant after the other."""

    wire: Wire
    tenants: list[str]
    statuses: Counter[int] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    async def client(self, number: int) -> None:
        for turn in itertools.count(number):
            tenant = self.tenants[turn * 7 % len(self.tenants)]
            named = {"x-kvgate-tenant": tenant}
            exchange = await self.wire.start_chat(named, max_tokens=100 + turn * 37 % 200, ignore_eos=True, stream=turn % 2 == 0)
            try:
                reply = await exchange.reply()
            finally:
                await exchange.leave()
            self.statuses[reply.status] += 1
            if reply.status != 200 or not reply.whole or not reply.body:
                self.failed.append(f"{tenant}: {reply}")

    async def more(self, count: int = ANSWERED) -> None:
        """Wait until so many more were answered."""
        enough = self.statuses.total() + count
        await until(lambda: self.statuses.total() >= enough or self.failed, f"{count} more answers", 120.0)
        assert not self.failed, self.failed[:3]


@asynccontextmanager
async def loaded(wire: Wire, tenants: list[str]) -> AsyncIterator[Load]:
    load = Load(wire, tenants)
    clients = [asyncio.create_task(load.client(number)) for number in range(CLIENTS)]
    try:
        yield load
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


@dataclass(slots=True)
class Operator:
    """Somebody at a shell, with the policy file in an editor."""

    admin: Wire
    file: Path
    capsys: pytest.CaptureFixture[str]

    async def says(self, *words: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, [*words, "--admin", f"http://127.0.0.1:{self.admin.port}"])
        return code, self.capsys.readouterr().out

    async def saves(self, mode: str, ratio: float) -> None:
        """As editors save: another file takes its name."""
        new = self.file.with_suffix(".new")
        new.write_text(FILE.format(mode=mode, ratio=ratio), encoding="utf-8")
        os.replace(new, self.file)  # noqa: PTH105

    async def state(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.admin.request("GET", "/admin/state")).json()
        return found

    async def sees(self, mode: str) -> dict[str, Any]:
        """Wait until that mode rules."""
        async with asyncio.timeout(20):
            while (found := await self.state())["mode"] != mode:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return found


async def test_from_off_to_enforce_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVGATE_ADMIN_TOKEN", "correct-horse-battery")
    enforced_first = [tenant for tenant in TENANTS if place_of(tenant) < 0.05]
    tenants = [*enforced_first, *(tenant for tenant in TENANTS if place_of(tenant) >= 0.05)][: 10 + len(enforced_first)]
    assert enforced_first
    async with AsyncExitStack() as stack:
        engine = {"num_gpu_blocks": 97, "max_model_len": 1024}
        chosen = settings(engine=engine, step_time=StepTimeModel(speed=4))
        mocks = [await stack.enter_async_context(running(chosen)) for _ in range(2)]
        urls = [url_of(mock) for mock in mocks]
        policy = FILE.format(mode="off", ratio=1.0)
        flags = ("--replica", *urls, "--tokenizer", str(TOKENIZER_DIRECTORY))
        kvgate = await stack.enter_async_context(serve(*flags, policy=policy, folder=tmp_path))
        wire, admin = await kvgate.ports()
        operator = Operator(admin, tmp_path / "policy.yaml", capsys)
        await kvgate.said("counting tokens with the tokenizer")
        load = await stack.enter_async_context(loaded(wire, tenants))
        await load.more()
        assert (await operator.state())["counters"]["would_hold"] == 0, "off looks at nothing"

        code, said = await operator.says("mode", "observe", "--for", "1h", "--reason", "a look before we enforce")
        assert (code, "mode observe: by hand" in said) == (0, True)
        await load.more(2 * ANSWERED)
        observed = (await operator.state())["counters"]
        assert observed["would_hold"] > 0
        assert (observed["held"], observed["shed"]) == (0, 0)
        code, said = await operator.says("report", "--since", "1h", "--json")
        report = json.loads(said)
        assert (code, report["ready"]) == (1, False)
        assert "fewer than 1000" in report["because"]
        assert report["modes"]["observe"]["preemptions"] > 0, "the engines are overrun without kvgate"
        assert report["modes"]["observe"]["token_count_mismatches"] == 0

        await operator.saves("enforce", 0.05)
        await kvgate.said("policy.live")
        assert (await operator.state())["mode"] == "observe", "the word given by hand wins over the file"
        assert (await operator.says("mode", "--clear"))[0] == 0
        await operator.sees("enforce")
        await load.more()
        few = (await operator.state())["counters"]
        assert few["would_hold"] > observed["would_hold"], "most tenants are observed still"

        await operator.saves("enforce", 1.0)
        await until(lambda: sum("policy.live" in line for line in kvgate.lines) == 2, "the second file")
        await load.more()
        enforced = (await operator.state())["counters"]
        assert enforced["held"] > few["held"]
        assert (await operator.state())["queue"]["requests"] > 0

        assert (await operator.says("mode", "off", "--for", "10m", "--reason", "the night is quiet enough"))[0] == 0
        state = await operator.sees("off")
        assert state["queue"]["requests"] == 0, "who waited went on"
        await load.more()
        assert (await operator.state())["counters"]["held"] == state["counters"]["held"], "nobody is held any more"
        assert set(load.statuses) == {200}
        code, said = await operator.says("report", "--since", "1h", "--json")
        assert set(json.loads(said)["modes"]) == {"off", "observe", "enforce"}
