"""Outside of enforce nothing of a policy is felt: no rate, share, bound, deadline or cap. Observe counts what it would have done."""

import asyncio
from typing import Any

import pytest

from tests.integration.serving.harness import until
from tests.integration.serving.test_modes import LONG, leave_all, small

STRICT: dict[str, Any] = {
    "tenants": {"others": {"requests_per_s": 0.001, "burst": "1s", "tokens_per_min": 1, "kv_share_max": 0.001}},
    "classes": [
        {
            "name": "all", "deadline": "10ms", "ttft": "10ms", "queue": {"requests_max": 0, "tokens_max": 0, "wait_max": "0s"},
            "when_saturated": ["degrade", "queue", "shed"], "degrade": {"max_tokens_min": 1},
        }
    ],
    "queue": {"requests_max": 0, "tokens_max": 0, "wait_max": "0s"},
}  # fmt: skip


@pytest.mark.parametrize("mode", ["observe", "off"])
async def test_no_limit_is_felt(mode: str) -> None:
    async with small({"mode": mode, **STRICT}) as (mocks, proxy):
        filling = [await proxy.wire.start_chat(**LONG) for _ in range(8)]
        engine = mocks[0].server.pool.engines[0]
        await until(lambda: engine.unfinished == 8, "twice what fits, at the replica")
        headers = {"x-kvgate-deadline-ms": "0", "x-kvgate-tenant": "one"}
        asked = [proxy.wire.chat(headers, max_tokens=20 + number, ignore_eos=True) for number in range(6)]
        waiting = asyncio.gather(*asked)
        await until(lambda: engine.unfinished == 14, "the others too")
        await leave_all(filling)
        replies = await waiting
        assert [reply.status for reply in replies] == [200] * 6
        assert [reply.json()["usage"]["completion_tokens"] for reply in replies] == [20 + number for number in range(6)]
        assert not any(name.startswith("x-kvgate-d") for reply in replies for name in reply.headers), "nothing was degraded"
        counters = proxy.services.dispatcher.gate.counters
        assert (counters.held, counters.shed) == (0, 0)
        assert (counters.would_hold + counters.would_shed > 6) == (mode == "observe")
        await proxy.until_idle(*mocks)


async def test_those_beyond_the_ratio_are_only_observed() -> None:
    """A tenant whose place is beyond feels nothing of the policy that another is refused by."""
    async with small({"enforce_ratio": 0.5, "tenants": {"others": {"requests_per_s": 0.001, "burst": "1s"}}}) as (mocks, proxy):
        gate = proxy.services.dispatcher.gate
        names = [f"tenant-{number}" for number in range(20)]
        inside = next(name for name in names if gate.enforces(name))
        outside = next(name for name in names if not gate.enforces(name))
        statuses = {}
        for name in (inside, outside):
            replies = [await proxy.wire.chat({"x-kvgate-tenant": name}, max_tokens=1) for _ in range(3)]
            statuses[name] = [reply.status for reply in replies]
        assert statuses[outside] == [200, 200, 200]
        assert 429 in statuses[inside]
        assert gate.counters.would_shed > 0
        await proxy.until_idle(*mocks)
