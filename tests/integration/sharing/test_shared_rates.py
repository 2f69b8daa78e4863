"""A tenant's rate over two proxies and a real redis-server: what one lets in is charged at the other within a beat or two."""

from contextlib import AsyncExitStack

import pytest

from proxy.core.tenant_rates import TOKENS
from proxy.ports.store import StorePhase
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import proxying, until, url_of
from tests.support.redis_server import redis_server

pytestmark = pytest.mark.redis

ACME = {"x-kvgate-tenant": "acme"}
POLICY = {
    "store": {"timeout": "100ms", "lease": "1s", "beat": "50ms", "rewrite": "50ms"},
    # 600 tokens at once, and none to speak of in the time of a test
    "tenants": {"from": "header", "list": {"acme": {"tokens_per_min": 10, "burst": "1h", "kv_share_max": 0.5}}},
}


async def test_what_is_used_at_one_proxy_is_gone_at_the_other() -> None:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(redis_server())
        url = url_of(await stack.enter_async_context(running(settings())))
        here, there = [await stack.enter_async_context(proxying(url, policy=POLICY, redis_url=server.url)) for _ in range(2)]
        await until(lambda: all(one.sharing.phase is StorePhase.SHARING for one in (here, there)), "both to share")
        gates = [one.services.dispatcher.gate for one in (here, there)]
        await until(lambda: [gate.shares.proxies for gate in gates] == [2, 2], "each to know of the other")
        used = 0
        while (reply := await here.wire.complete(ACME, prompt=[7] * 100, max_tokens=50, ignore_eos=True)).status == 200:
            used += 150
        assert reply.headers["x-kvgate-outcome"] == "tenant_rate"
        assert used in {450, 600}, "the bucket, but for what requests were thought to take"
        now_s = there.services.clock.now_s
        told = lambda: gates[1].rates.left("acme", now_s()).get(TOKENS, 600.0) < 601.0 - used  # noqa: E731
        await until(told, "the other to hear of it")
        refused = await there.wire.complete(ACME, prompt=[7] * 200, max_tokens=50)
        assert refused.headers["x-kvgate-outcome"] == "tenant_rate"
        assert (await there.wire.complete({"x-kvgate-tenant": "other"}, prompt=[7], max_tokens=2)).status == 200
