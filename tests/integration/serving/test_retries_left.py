"""What fails is sent to another replica as often as answers pay for it, and a little more; then the client is told."""

import pytest

from tests.integration.serving.harness import proxying
from tests.integration.serving.test_reroutes import BROKEN, SERVED, Faulty, beside_a_faulty_one
from tests.support.upstream_servers import ScriptedUpstream

EARNED_ONLY = {
    "relay": {"retry_ratio": 0, "retries_per_s_min": 0},
    "health": {"failures_max": 1000},
}  # so that no time plays a part


@pytest.mark.parametrize(("says", "status", "retry"), [(b"", 502, "false"), (BROKEN, 500, None)])
async def test_beyond_the_budget_a_failure_is_answered(says: bytes, status: int, retry: str | None) -> None:
    """All replicas fail all there is: what the answer before paid for is one more attempt, and no request after that gets a second one."""
    one, two = Faulty(SERVED), Faulty(SERVED)
    async with (
        ScriptedUpstream.running(one) as first,
        ScriptedUpstream.running(two) as second,
        proxying(first.url, second.url, kv_blocks=300, policy=EARNED_ONLY) as proxy,
    ):
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        assert proxy.metric("kvgate_retries_left") == 1
        one.says = two.says = says
        for requests in range(1, 4):
            reply = await proxy.wire.chat(max_tokens=2)
            assert reply.status == status
            assert reply.headers.get("x-should-retry") == retry
            if status == 502:
                assert reply.json()["error"]["policy_key"] == "relay.retry_ratio"
                assert proxy.metric("kvgate_retries_refused_total") == requests
            assert proxy.metric("kvgate_retries_left") == 0
            assert one.asked + two.asked == 1 + requests + 1
        await proxy.until_idle()


async def test_what_replicas_answer_pays_for_what_they_fail() -> None:
    """One of two begins to fail all there is, and no client notices."""
    async with beside_a_faulty_one(SERVED, EARNED_ONLY) as (faulty, mock, proxy):
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        assert faulty.asked == 1
        faulty.says = b""
        for requests in range(1, 9):
            assert (await proxy.wire.chat(max_tokens=2)).status == 200
            assert proxy.metric("kvgate_retries_left") == 1  # as many as were under way
            assert 1 <= proxy.metric("kvgate_reroutes_total") == faulty.asked - 1 <= requests
        await proxy.until_idle(mock)


async def test_a_client_may_be_told_to_retry_while_the_budget_lasts() -> None:
    async with ScriptedUpstream.running(Faulty(b"")) as upstream, proxying(upstream.url, kv_blocks=300) as proxy:
        reply = await proxy.wire.chat(max_tokens=2)
        assert (reply.status, reply.headers["x-should-retry"]) == (502, "true")
        await proxy.until_idle()
