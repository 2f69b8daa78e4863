"""What the live page is looked at over: mocks so slow that no state passes while a busy machine looks, and kvgate before them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from proxy.sim.step_time import StepTimeModel
from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import Exchange, RunningProxy, admin_of, proxying, url_of

SMALL: dict[str, Any] = {"engine": {"num_gpu_blocks": 257, "max_model_len": 2048}, "step_time": StepTimeModel(speed=0.1)}
POLICY: dict[str, Any] = {
    "classes": [
        {"name": "chat", "match": {"headers": {"x-class": "chat"}}, "priority": 10},
        {"name": "batch", "match": {"headers": {"x-class": "batch"}}},
    ],
    "tenants": {"from": "header", "header": "x-tenant"},
    "queue": {"wait_max": "1h"},
    "store": {"timeout": "100ms", "lease": "1s", "beat": "50ms", "rewrite": "50ms"},
}


@dataclass(frozen=True, slots=True)
class Stage:
    """One proxy, its mocks, and the address of its page."""

    proxy: RunningProxy
    mocks: list[RunningMock]
    url: str
    doomed: AsyncExitStack  # closing it ends the last of the mocks

    async def ask(self, count: int, *, tokens: int, tenants: tuple[str, ...] = ("acme", "globex")) -> list[Exchange]:
        """Streams that go on for a while."""
        found = []
        for index in range(count):
            headers = {"x-class": "batch" if index % 3 else "chat", "x-tenant": tenants[index % len(tenants)]}
            found.append(await self.proxy.wire.start_chat(headers, max_tokens=tokens, ignore_eos=True, stream=True))
        return found


@asynccontextmanager
async def staged(*, replicas: int = 2, engines: int = 1, redis_url: str | None = None) -> AsyncIterator[Stage]:
    """``replicas`` servers of ``engines`` each."""
    chosen = settings(**SMALL, data_parallel_size=engines)
    async with AsyncExitStack() as stack, AsyncExitStack() as doomed:
        mocks = [
            await (doomed if index == replicas - 1 else stack).enter_async_context(running(chosen)) for index in range(replicas)
        ]
        proxy = await stack.enter_async_context(proxying(*map(url_of, mocks), policy=POLICY, redis_url=redis_url))
        admin = await stack.enter_async_context(admin_of(proxy))
        yield Stage(proxy, mocks, f"http://127.0.0.1:{admin.port}/", doomed)


async def leave(exchanges: list[Exchange]) -> None:
    """Close them all."""
    for exchange in exchanges:
        await exchange.leave()
