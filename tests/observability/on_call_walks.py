"""The two walks of ``deploy/prometheus/README.md``, played: from the alert over its runbook's queries to the cause, and to what ends it.

    python -m tests.observability.on_call_walks

prints what each query showed. The walks take about a minute each; windows of five minutes are shortened to twenty seconds, and alerts fire
without the time that they wait.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import yaml

from tests.observability.on_call_stage import on_call, queries_of

Readings = dict[str, Any]
STORM = {"mode": "observe", "relay": {"drain_accept": "0s", "grace": "1s"}}
NOISY = {"tenants": {"from": "header"}, "relay": {"drain_accept": "0s", "grace": "1s"}}
LIMITED = NOISY | {"tenants": {"from": "header", "list": {"loud": {"requests_per_s": 1, "burst": "2s"}}}}


def asked(alert: str, words: str) -> str:
    """Return the runbook's query that has these words. Raises AssertionError where it has none."""
    found = [query for query in queries_of(alert) if words in query]
    assert found, f"the runbook of {alert} asks nothing about {words}: {queries_of(alert)}"
    return found[0]


async def storm(folder: Path) -> Readings:
    """A service observes; a deploy makes its system prompt six times as long."""
    alert = "KvgatePreemptionsAboveTarget"
    grew, rates = asked(alert, 'kind="prompt"'), asked(alert, "rate(kvgate_replica_preemptions_total")
    async with on_call(folder, STORM) as seat:
        seat.crowd.add(10, "shop", prompt_words=60, output_tokens=150)
        await seat.until(f"sum(kvgate_requests_total) > 40 and {grew} > 0", "traffic before the deploy")
        before = {"prompt_tokens": await seat.value(grew), "preemptions_per_s": sum((await seat.series(rates)).values())}
        await seat.crowd.leave()
        seat.crowd.add(10, "shop", prompt_words=400, output_tokens=150)
        await seat.fires(alert)
        await seat.until(f"{grew} > 2.5 * {before['prompt_tokens']}", "longer prompts in the runbook's query")
        during = {
            "per_1000": await seat.value("job:kvgate_preemptions_per_1000_requests:rate5m"),
            "preemptions_per_s": await seat.series(rates),
            "foreign": await seat.series(asked(alert, "kvgate_replica_foreign_sequences")),
            "second_proxy": await seat.series(asked(alert, "kvgate_replica_second_proxy")),
            "not_enforcing": len(await seat.prometheus.query(asked(alert, 'kvgate_mode{mode="enforce"}'))),
            "prompt_tokens": await seat.value(grew),
            "would": [one["would"] for one in await seat.requests(last="20") if one.get("would")],
        }
        await seat.command("mode", "enforce", "--for", "10m", "--reason", "preemptions since the deploy")
        await seat.until(
            "sum(increase(kvgate_replica_preemptions_total[10s])) == 0 and sum(increase(kvgate_requests_total[10s])) > 5",
            "its end",
        )
        after = {"per_s": await seat.value('sum(rate(kvgate_requests_total{outcome="completed"}[10s]))')}
        return {"before": before, "during": during, "after": after}


async def noisy(folder: Path) -> Readings:
    """Three tenants with a request at a time each, and one that comes with two dozen."""
    alert = "KvgateTenantDominates"
    shares, waits = asked(alert, "topk"), asked(alert, "queue_wait")
    async with on_call(folder, NOISY) as seat:
        for tenant in ("acme", "zoo", "kiosk"):
            seat.crowd.add(1, tenant, prompt_words=60, output_tokens=100)
        await seat.until(f"{waits} > 0 and on () sum(kvgate_requests_total) > 12", "traffic before")
        before = {"wait_p90_s": await seat.series(waits)}
        seat.crowd.add(24, "loud", prompt_words=200, output_tokens=200)
        await seat.fires(alert)
        (culprit,) = [
            one["metric"]["tenant"] for one in await seat.prometheus.query(f'ALERTS{{alertname="{alert}", alertstate="firing"}}')
        ]
        during = {
            "alert_names": culprit,
            "shares": await seat.series(shares),
            "wait_p90_s": await seat.series(waits),
            "refusals_per_s": await seat.series(asked(alert, "kvgate_refusals_total")),
            "requests": [one["reason"] for one in await seat.requests(last="3", tenant=culprit, outcome="completed")],
        }
        seat.policy.write_text(yaml.safe_dump(LIMITED), encoding="utf-8")
        await seat.until(
            'sum by (tenant) (rate(kvgate_tenant_refusals_total{tenant="loud"}[5m])) > 0.2', "refusals of the tenant"
        )
        fraction = 'sum(rate(kvgate_tenant_tokens_total{tenant="loud"}[10s])) / sum(rate(kvgate_tenant_tokens_total[10s]))'
        await seat.until(f"{fraction} < 0.6 and sum(kvgate_queue_requests) < 2", "an end of the crowd")
        after = {
            "share": await seat.value(fraction),
            "refused_per_s": await seat.series("sum by (tenant) (rate(kvgate_tenant_refusals_total[5m]))"),
            "queue": await seat.value("sum(kvgate_queue_requests)"),
        }
        return {"before": before, "during": during, "after": after}


async def play(walk: Callable[[Path], Awaitable[Readings]]) -> Readings:
    """Play one in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return await walk(Path(folder))


def main() -> int:
    """Play both and tell what was seen."""
    for walk in (storm, noisy):
        sys.stdout.write(f"{walk.__name__}: {json.dumps(asyncio.run(play(walk)), indent=1)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
