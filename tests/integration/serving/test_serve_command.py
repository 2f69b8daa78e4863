"""``kvgate serve`` as a process: what it says, how it starts without a replica, and how it ends."""

import asyncio
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from proxy import __version__
from proxy.sim.mock_text import TOKENIZER_DIRECTORY
from proxy.sim.step_time import StepTimeModel
from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import Wire, url_of

SERVING = re.compile(r"serving on http://127\.0\.0\.1:(\d+), metrics and state on http://127\.0\.0\.1:(\d+)")


@dataclass(slots=True)
class Serve:
    """A running ``kvgate serve``."""

    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)
    _said: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def read(self) -> None:
        """Keep what it says."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            async with self._said:
                self.lines.append(line.decode().rstrip())
                self._said.notify_all()
        async with self._said:
            self._said.notify_all()

    async def said(self, pattern: str | re.Pattern[str]) -> re.Match[str]:
        """Wait for a line that matches."""
        found: list[re.Match[str]] = []

        def told() -> bool:
            found[:] = [match for line in self.lines if (match := re.search(pattern, line))]
            return bool(found) or self.process.returncode is not None

        async with asyncio.timeout(40), self._said:
            await self._said.wait_for(told)
        assert found, (pattern, self.lines)
        return found[0]

    async def ports(self) -> tuple[Wire, Wire]:
        """Wait until it serves; return clients of both ports."""
        match = await self.said(SERVING)
        return Wire(int(match[1])), Wire(int(match[2]))

    async def ended(self) -> int:
        """Wait for its end; return the exit code."""
        async with asyncio.timeout(20):
            return await self.process.wait()


@asynccontextmanager
async def serve(*arguments: str, policy: str = "", folder: Path) -> AsyncIterator[Serve]:
    """Run it until the block ends."""
    path = folder / "policy.yaml"
    path.write_text(policy or "mode: enforce\n", encoding="utf-8")
    ports = ("--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--policy", str(path))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy", "serve", *ports, *arguments, stderr=asyncio.subprocess.PIPE
    )
    running_serve = Serve(process)
    reader = asyncio.create_task(running_serve.read())
    try:
        yield running_serve
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reader


@asynccontextmanager
async def serving(policy: str, folder: Path, *arguments: str) -> AsyncIterator[tuple[Serve, RunningMock]]:
    """Run it before a mock that steps at a GPU's speed."""
    async with AsyncExitStack() as stack:
        mock = await stack.enter_async_context(running(settings(step_time=StepTimeModel())))
        kvgate = await stack.enter_async_context(serve("--replica", url_of(mock), *arguments, policy=policy, folder=folder))
        clients, _ = await kvgate.ports()
        await kvgate.said("counting tokens with|no tokenizer of our own")
        assert (await clients.request("GET", "/ready")).status == 200
        yield kvgate, mock


DRAIN = "relay: {drain_accept: 1s, grace: 20s}\nscrape: {interval: 100ms}\n"


async def test_it_says_what_it_found_and_drains(tmp_path: Path) -> None:
    tokenizer = ("--tokenizer", str(TOKENIZER_DIRECTORY))
    async with serving(DRAIN, tmp_path, *tokenizer) as (kvgate, _):
        clients, admin = await kvgate.ports()
        said = "\n".join(kvgate.lines)
        assert f"kvgate {__version__}: mode enforce, 1 replica(s)" in kvgate.lines[0]
        assert "vLLM 0.32.0 serves mock, context 4,096 tokens" in said
        assert "KV cache: 512 blocks of 16 tokens (reported), 1 engine; usable per engine 511" in said
        assert "load: measured by vllm:kv_cache_usage_perc" in said
        assert "counting tokens with the tokenizer" in said
        assert (await clients.request("GET", "/ready")).status == 200
        assert b"kvgate_mode" in (await admin.request("GET", "/metrics")).body
        assert (await admin.request("GET", "/admin/replicas?history=1")).json()[0]["usable_blocks"] == 511

        stream = await clients.start_chat(max_tokens=250, ignore_eos=True, stream=True)
        await stream.reader.readuntil(b"data: ")
        kvgate.process.send_signal(signal.SIGTERM)
        await kvgate.said("drain.started requests=1")
        assert (await clients.request("GET", "/ready")).status == 503
        assert (await admin.request("GET", "/ready")).json()["drain"] == "accepting"
        assert (await clients.request("GET", "/health")).status == 200
        assert (await clients.chat(max_tokens=2)).status == 200  # balancers have not seen it yet

        await kvgate.said("drain.refusing requests=1")
        refused = await clients.chat(max_tokens=2)
        assert (refused.status, refused.headers["x-kvgate-outcome"]) == (503, "draining")
        assert refused.headers["retry-after"] == "1" or refused.headers["retry-after"] == "2"
        assert (await stream.reader.read()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        await stream.leave()
        assert await kvgate.ended() == 0
        assert any("drain.finished" in line for line in kvgate.lines)
        assert not [line for line in kvgate.lines if "Traceback" in line or "Exception" in line]


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    policy = "relay: {drain_accept: 10m, grace: 10m}\n"
    async with serving(policy, tmp_path) as (kvgate, mock):
        clients, _ = await kvgate.ports()
        stream = await clients.start_chat(max_tokens=3000, ignore_eos=True, stream=True)
        await stream.reader.readuntil(b"data: ")
        kvgate.process.send_signal(signal.SIGINT)
        await kvgate.said("drain.started")
        kvgate.process.send_signal(signal.SIGTERM)
        assert await kvgate.ended() == 0
        await stream.leave()
        await mock.until_idle()
        assert not [line for line in kvgate.lines if "Traceback" in line or "Exception" in line]


async def test_what_still_runs_after_the_grace_is_cut_off(tmp_path: Path) -> None:
    policy = "relay: {drain_accept: 0s, grace: 200ms}\n"
    async with serving(policy, tmp_path) as (kvgate, mock):
        clients, _ = await kvgate.ports()
        stream = await clients.start_chat(max_tokens=3000, ignore_eos=True, stream=True)
        await stream.reader.readuntil(b"data: ")
        kvgate.process.send_signal(signal.SIGTERM)
        await kvgate.said("drain.cut_off requests=1")
        told = (await stream.reader.read()).decode()
        assert '"code":"cut_off"' in told
        assert told.endswith("data: [DONE]\n\n\r\n0\r\n\r\n")
        assert await kvgate.ended() == 0
        await stream.leave()
        await mock.until_idle()
        assert not [line for line in kvgate.lines if "Traceback" in line or "Exception" in line]


async def test_who_still_waits_after_the_grace_is_told(tmp_path: Path) -> None:
    policy = "relay: {drain_accept: 0s, grace: 200ms}\nlimits: {static_cap_per_replica: 1}\n"
    async with serving(policy, tmp_path, "--kv-blocks", "200") as (kvgate, _):
        clients, _ = await kvgate.ports()
        running = [await clients.start_chat(max_tokens=2900, ignore_eos=True, stream=True)]
        await running[0].reader.readuntil(b"data: ")
        waiting = await clients.start_chat(max_tokens=2900, ignore_eos=True, stream=True)
        await until_held(clients)
        kvgate.process.send_signal(signal.SIGTERM)
        reply = await waiting.reply()
        assert (reply.status, reply.headers["x-kvgate-outcome"]) == (503, "draining")
        assert reply.headers["x-should-retry"] == "true"
        assert await kvgate.ended() == 0
        await running[0].leave()


async def until_held(clients: Wire) -> None:
    async with asyncio.timeout(20):
        while b"kvgate_queue_requests 1.0" not in (await clients.request("GET", "/metrics")).body:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_it_starts_without_a_replica_and_uses_it_once_it_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    async with serve("--replica", f"http://127.0.0.1:{port}", folder=tmp_path) as kvgate:
        clients, _ = await kvgate.ports()
        await kvgate.said(rf"replica 127.0.0.1:{port} is not reachable yet: .*Check that vLLM is running there")
        reply = await clients.chat(max_tokens=2)
        assert (reply.status, reply.headers["x-kvgate-outcome"]) == (503, "no_replica")
        assert 1 <= int(reply.headers["retry-after"]) <= 59
        assert (await clients.request("GET", "/ready")).status == 503
        mock = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "proxy", "mock-vllm", "--port", str(port), stderr=asyncio.subprocess.DEVNULL
        )
        try:
            await kvgate.said("vLLM 0.32.0 serves mock")
            await kvgate.said("counting tokens with|no tokenizer of our own")
            assert (await clients.chat(max_tokens=2)).status == 200
            assert (await clients.request("GET", "/ready")).status == 200
        finally:
            mock.kill()
            await mock.wait()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "no replica to forward to"),
        (("--replica", "ftp://x"), "allowed http://HOST:PORT or https://HOST:PORT"),
        (("--replica", "http://127.0.0.1:9", "--workers", "2"), "--workers: got 2; allowed 1"),
        (("--replica", "http://127.0.0.1:9", "--redis", "x:6379"), "--redis: got an address not shown here; allowed redis://"),
        (("--replica", "http://127.0.0.1:9", "--redis", "rediss://x?ca=/nowhere"), "--redis: got ca=/nowhere; allowed a file"),
    ],
)
async def test_what_it_cannot_run_with_ends_it_with_a_sentence(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    async with serve(*arguments, folder=tmp_path) as kvgate:
        assert await kvgate.ended() == 2
        await kvgate.said(re.escape(told))
        assert not [line for line in kvgate.lines if "Traceback" in line]


async def test_a_bad_policy_and_a_taken_port(tmp_path: Path) -> None:
    async with serve("--replica", "http://127.0.0.1:9", policy="queue: {wait_max: 30}\n", folder=tmp_path) as kvgate:
        assert await kvgate.ended() == 2
        await kvgate.said(r"policy.yaml:1:\d+: queue.wait_max: got .*30.* with its unit")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        async with serve("--replica", "http://127.0.0.1:9", "--port", port, folder=tmp_path) as kvgate:
            assert await kvgate.ended() == 1
            await kvgate.said(rf"cannot listen on 127.0.0.1:{port}: .*Choose another address or port")
            assert not [line for line in kvgate.lines if "Traceback" in line]


@pytest.mark.slow
async def test_a_saved_policy_and_its_replicas_rule_the_process(tmp_path: Path) -> None:
    """By being saved, by SIGHUP, and not at all while it has a fault."""
    path = tmp_path / "policy.yaml"
    async with running(settings()) as one, running(settings()) as two:
        policy = f"scrape: {{interval: 100ms}}\nreplicas: ['{url_of(one)}']\n"
        async with serve("--tokenizer", str(TOKENIZER_DIRECTORY), policy=policy, folder=tmp_path) as kvgate:
            clients, admin = await kvgate.ports()
            await kvgate.said("counting tokens with")
            before = (await admin.request("GET", "/admin/policy")).json()
            save(path, policy.replace(url_of(one), url_of(two)))
            await kvgate.said("policy.live version=")
            await kvgate.said("replica.left")
            shown = (await admin.request("GET", "/admin/policy")).json()
            assert shown["version"] != before["version"]
            assert shown["replicas"] == [url_of(two).removeprefix("http://")]
            assert (await clients.chat(max_tokens=2)).status == 200
            save(path, "mode: nonsense\n")
            await kvgate.said(r"policy\.bad .*policy\.yaml:1:7: mode")
            assert (await clients.request("GET", "/ready")).status == 200
            save(path, policy)
            kvgate.process.send_signal(signal.SIGHUP)
            await kvgate.said("policy.asked")
            await kvgate.said(rf"policy\.live version={before['version']}")
            assert (await clients.chat(max_tokens=2)).status == 200
            kvgate.process.send_signal(signal.SIGINT)
            assert await kvgate.ended() == 0


def save(path: Path, text: str) -> None:
    """As editors do."""
    other = path.with_suffix(".new")
    other.write_text(text, encoding="utf-8")
    other.replace(path)
