"""Every panel's and every rule's query against a real Prometheus that scrapes a live kvgate."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from tests.observability.live_stage import Stage, live_stage
from tests.observability.query_check import faults_of, until_all_found
from tests.observability.shipped import ShippedQuery, dashboards, panel_queries, rule_queries, rules

FOUND_S_MAX = 150.0
# What Grafana fills in; "All" of a variable is its allValue.
VALUES = {"job": ".+", "replica": ".+", "tenant": ".+", "traffic_class": ".+", "__rate_interval": "30s"}

pytestmark = [pytest.mark.observability, pytest.mark.asyncio(loop_scope="module")]


def shipped_queries() -> list[ShippedQuery]:
    return [query for name, board in dashboards().items() for query in panel_queries(name, board, VALUES)] + list(rule_queries())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder: Path = tmp_path_factory.mktemp("observability")
    async with live_stage(folder) as found:
        yield found


async def test_every_query_finds_what_it_asks_for(stage: Stage) -> None:
    queries = shipped_queries()
    assert len(queries) > 100
    assert "\n".join(await until_all_found(stage.prometheus, queries, FOUND_S_MAX)) == ""


async def test_every_rule_is_evaluated(stage: Stage) -> None:
    groups = (await stage.prometheus.ask("rules"))["groups"]
    told = [rule for group in groups for rule in group["rules"]]
    assert len(told) == len(list(rules()))
    assert [(rule["name"], rule.get("lastError")) for rule in told if rule["health"] != "ok"] == []


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("kvgate_queue_class_requests", "kvgate_queue_class_reqests", "finds nothing"),
        ("by (traffic_class)", "by (class)", "class"),
        ('met="no"', 'met="never"', "finds nothing"),
        ("kvgate_replica_phase", "kvgate_replica_phases", "finds nothing"),
        ("sum by (source)", "sum by (source", "parse error"),
    ],
)
async def test_a_fault_planted_in_a_panel_is_found(stage: Stage, right: str, wrong: str, complaint: str) -> None:
    name, board, panel = next(
        (name, board, panel)
        for name, board in dashboards().items()
        for panel in board["panels"]
        if any(right in target["expr"] for target in panel.get("targets", ()))
    )
    for target in panel["targets"]:
        target["expr"] = target["expr"].replace(right, wrong)
    faults = await faults_of(stage.prometheus, panel_queries(name, board, VALUES))
    assert any(complaint in line for line in faults)
    assert all(line.startswith(f"{name}: {panel['title']}: ") for line in faults)


@pytest.mark.parametrize(
    "rule", ["KvgateForeignTraffic", "KvgateStoreSlow", "KvgateTenantDominates", "job:kvgate_shed:ratio_rate5m"]
)
async def test_a_wrong_name_planted_in_a_rule_is_found(stage: Stage, rule: str) -> None:
    query = next(query for query in rule_queries() if query.place == f"rule {rule}")
    for selector in query.selectors():
        name = selector.partition("{")[0]
        planted = replace(query, expression=query.expression.replace(name, name.replace("kvgate", "kvgate_x")))
        assert any("finds nothing" in line for line in await faults_of(stage.prometheus, [planted]))
