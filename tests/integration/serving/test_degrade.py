"""An answer that is cut shorter for want of room says so, and the engine is asked for no more; whoever must have it whole never is."""

from typing import Any

import pytest

from proxy.sim.step_time import StepTimeModel
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import proxying, until, url_of

LONG: dict[str, Any] = {"max_tokens": 1800, "ignore_eos": True, "stream": True}
SHORT = {
    "name": "short",
    "match": {"headers": {"x-class": "short"}},
    "when_saturated": ["degrade", "shed"],
    "degrade": {"max_tokens_min": 20},
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


@pytest.mark.parametrize("whole", [{}, {"tools": TOOLS}, {"response_format": {"type": "json_object"}}, {"min_tokens": 300}])
async def test_a_full_pool_cuts_what_may_be_cut(whole: dict[str, Any]) -> None:
    engine = {"num_gpu_blocks": 129, "max_model_len": 2048}
    slow = settings(engine=engine, step_time=StepTimeModel(speed=4))  # so that the long one is still there
    async with running(slow) as mock, proxying(url_of(mock), policy={"classes": [SHORT]}) as proxy:
        gate = proxy.services.dispatcher.gate
        exchanges = [await proxy.wire.start_chat(**LONG)]
        await until(lambda: gate.open_requests == 1, "a request that has most of the pool")
        reply = await proxy.wire.chat({"x-class": "short"}, max_tokens=1500, ignore_eos=True, **whole)
        if whole:
            assert (reply.status, reply.headers["x-kvgate-outcome"]) == (429, "queue_timeout")
        else:
            assert reply.status == 200
            cap = int(reply.headers["x-kvgate-degraded"].removeprefix("max_tokens="))
            assert 20 <= cap < 1500
            assert reply.json()["usage"]["completion_tokens"] == cap
            assert proxy.metric("kvgate_degraded_total") == 1.0
        for exchange in exchanges:
            await exchange.leave()
        await proxy.until_idle(mock)
        reply = await proxy.wire.chat({"x-class": "short"}, max_tokens=3)
        assert "x-kvgate-degraded" not in reply.headers
