"""What is shipped leads from the alert to the cause: the two walks of the runbooks, played on a mock with real processes."""

from pathlib import Path

import pytest

from tests.observability.on_call_stage import queries_of
from tests.observability.on_call_walks import noisy, storm

pytestmark = pytest.mark.observability


async def test_a_storm_of_preemptions_is_traced_to_longer_prompts_in_observe(tmp_path: Path) -> None:
    seen = await storm(tmp_path)
    before, during = seen["before"], seen["during"]
    assert before["preemptions_per_s"] == 0.0
    assert during["per_1000"] > 5.0
    assert sum(during["preemptions_per_s"].values()) > 0.0
    assert during["foreign"] == during["second_proxy"] == {}  # nobody goes past kvgate
    assert during["not_enforcing"] == 1  # it observes
    assert during["prompt_tokens"] > 2.5 * before["prompt_tokens"]
    assert any(one["action"] == "hold" for one in during["would"])
    assert seen["after"]["per_s"] > 0.0


async def test_a_noisy_tenant_is_named_and_ends_with_a_limit(tmp_path: Path) -> None:
    seen = await noisy(tmp_path)
    during, after = seen["during"], seen["after"]
    assert during["alert_names"] == "loud"
    assert max(during["shares"], key=lambda tenant: during["shares"][tenant]) == "loud"
    assert during["wait_p90_s"]["default"] > seen["before"]["wait_p90_s"]["default"]
    assert any("Waited" in reason for reason in during["requests"])
    assert after["share"] < 0.6
    assert set(after["refused_per_s"]) == {"loud"}


@pytest.mark.parametrize(("alert", "count"), [("KvgatePreemptionsAboveTarget", 5), ("KvgateTenantDominates", 3)])
def test_the_runbooks_name_their_queries(alert: str, count: int) -> None:
    assert len(queries_of(alert)) >= count
