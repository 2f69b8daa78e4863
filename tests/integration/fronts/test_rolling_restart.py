"""Two proxies restarted one after the other under load, each taken off the list late, as Kubernetes does: no request fails."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from proxy.sim.step_time import StepTimeModel
from tests.integration.fronts.nginx import nginx
from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import MESSAGES, url_of
from tests.integration.serving.test_serve_command import Serve, serve
from tests.support.upstream_servers import gateway

POLICY = "relay: {drain_accept: 3s, grace: 20s}\nscrape: {interval: 100ms}\n"
LATE_S = 1.0  # from SIGTERM until nothing new is sent there
CLIENTS = 6
Balance = Callable[[list[int]], None]  # sends what comes to these ports from now on


class Load:
    """Clients that ask one thing after another, every second one as a stream; with ``keep`` over kept-alive connections."""

    def __init__(self, port: int, *, keep: bool) -> None:
        self.headers = {} if keep else {"connection": "close"}
        self.url = f"http://127.0.0.1:{port}/v1/chat/completions"
        self.served = 0
        self.failed: list[str] = []
        self.ended = False

    async def run(self) -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            await asyncio.gather(*(self._client(http, stream=number % 2 == 0) for number in range(CLIENTS)))

    async def _client(self, http: httpx.AsyncClient, *, stream: bool) -> None:
        body = {"model": "mock", "messages": MESSAGES, "max_tokens": 30, "ignore_eos": True, "stream": stream}
        while not self.ended:
            try:
                reply = await http.post(self.url, json=body, headers=self.headers)
            except httpx.HTTPError as error:
                self.failed.append(repr(error))
                continue
            whole = reply.text.endswith("data: [DONE]\n\n") if stream else bool(json.loads(reply.text).get("choices"))
            if reply.status_code == 200 and whole and '"error"' not in reply.text:
                self.served += 1
            else:
                self.failed.append(f"{reply.status_code} {reply.text[-300:]}")

    async def until_served(self, more: int) -> None:
        """Until so many more were, or something failed."""
        goal = self.served + more
        async with asyncio.timeout(60):
            while self.served < goal and not self.failed:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@asynccontextmanager
async def proxy_before(mock: RunningMock, folder: Path) -> AsyncIterator[tuple[Serve, int]]:
    folder.mkdir()  # noqa: ASYNC240
    async with serve("--replica", url_of(mock), policy=POLICY, folder=folder) as process:
        clients, _ = await process.ports()
        await process.said("counting tokens with|no tokenizer of our own")
        yield process, clients.port


async def roll(
    mock: RunningMock, folder: Path, stack: AsyncExitStack, balance: Balance, started: list[tuple[Serve, int]], load: Load
) -> None:
    """Replace both, and go on for a while."""
    listed = [port for _, port in started]
    for number, (old, old_port) in enumerate(started):
        new, new_port = await stack.enter_async_context(proxy_before(mock, folder / f"new-{number}"))
        old.process.send_signal(signal.SIGTERM)
        await old.said("drain.started")
        await asyncio.sleep(LATE_S)  # this is the case: requests still go there
        listed = [port for port in listed if port != old_port] + [new_port]
        balance(listed)
        assert await old.ended() == 0
        assert "drain.finished" in "\n".join(old.lines)
        await load.until_served(30)
        assert new.process.returncode is None


@pytest.mark.parametrize(
    "kind", [pytest.param("nginx", marks=pytest.mark.fronts), pytest.param("connections", marks=pytest.mark.slow)]
)
async def test_no_request_fails_over_a_rolling_restart(tmp_path: Path, kind: str) -> None:
    """``connections``: a balancer that knows only those, as a Kubernetes Service."""
    async with AsyncExitStack() as stack:
        mock = await stack.enter_async_context(running(settings(step_time=StepTimeModel())))
        started = [await stack.enter_async_context(proxy_before(mock, tmp_path / name)) for name in ("one", "two")]
        ports = [port for _, port in started]
        if kind == "nginx":
            front = await stack.enter_async_context(nginx(tmp_path, ports))
            port = front.port

            def balance(listed: list[int]) -> None:
                front.behind(listed)
                front.reload()
        else:
            listed_now = list(ports)
            port = await stack.enter_async_context(gateway(listed_now))

            def balance(listed: list[int]) -> None:
                listed_now[:] = listed

        # nginx closes idle connections when it is told of a new list, whatever a client is about to send on one.
        load = Load(port, keep=kind != "nginx")
        running_load = asyncio.create_task(load.run())
        await load.until_served(30)
        await roll(mock, tmp_path, stack, balance, started, load)
        load.ended = True
        await running_load
        assert load.failed == []
        assert load.served >= 90
