"""Dashboards, rules and runbooks as files: in step with their generator, the code's metrics, the policy's keys and each other."""

import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
import yaml

from proxy.config.schema import POLICY
from proxy.config.shape import key_names
from tests.observability.shipped import DEPLOY, GRAFANA, GROUPING, PROMETHEUS, dashboards, rules
from tests.test_docs import METRIC, metrics_of_the_code, plain

BOARDS = dashboards()
ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
RUNBOOKS = (PROMETHEUS / "README.md").read_text("utf-8")
SEVERITIES = {"page", "ticket"}


def anchors(markdown: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub and most others make them."""
    headings = re.findall(r"(?m)^#+ (.+)$", markdown)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def overlaps(panels: list[dict[str, Any]]) -> Iterator[str]:
    """Yield pairs of panels that lie on one another, and panels that reach over the edge."""
    for panel in panels:
        place = panel["gridPos"]
        if place["x"] + place["w"] > 24 or min(place.values()) < 0 or place["h"] < 1:
            yield f"{panel['title']}: {place}"
    for one, other in combinations(panels, 2):
        a, b = one["gridPos"], other["gridPos"]
        if a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"] and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]:
            yield f"{one['title']} and {other['title']}"


def test_the_dashboards_are_what_their_generator_writes() -> None:
    told = subprocess.run([sys.executable, str(GRAFANA / "generate.py"), "--check"], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (0, "all dashboards are in step\n"), told.stderr


def test_there_is_a_board_for_each_question() -> None:
    assert {board["uid"] for board in BOARDS.values()} == {
        "kvgate-overview",
        "kvgate-replica",
        "kvgate-tenant",
        "kvgate-admission",
    }
    assert len({board["title"] for board in BOARDS.values()}) == len(BOARDS)


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_is_whole(name: str) -> None:
    board = BOARDS[name]
    panels = board["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    assert list(overlaps(panels)) == []
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert panels[0]["type"] == "text"
    assert len(panels[0]["options"]["content"]) > 200
    assert board["links"][0]["tags"] == board["tags"]
    for panel in panels:
        for target in panel.get("targets", ()):
            assert target["expr"], panel["title"]
            assert target["legendFormat"] or panel["type"] == "stat", panel["title"]
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        if panel["type"] not in ("row", "text"):
            assert panel["description"], panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] is None


def test_links_lead_to_boards_and_variables_that_exist() -> None:
    by_uid = {board["uid"]: {variable["name"] for variable in board["templating"]["list"]} for board in BOARDS.values()}
    urls = [
        link["url"]
        for board in BOARDS.values()
        for panel in board["panels"]
        for link in panel.get("fieldConfig", {}).get("defaults", {}).get("links", ())
    ]
    assert urls
    for url in urls:
        uid, query = re.fullmatch(r"/d/([a-z-]+)\?(.*)", url).groups()  # type: ignore[union-attr]
        assert set(re.findall(r"var-(\w+)=", query)) <= by_uid[uid]
    assert {rule["annotations"]["dashboard"].removeprefix("/d/") for rule in ALERTS.values()} <= set(by_uid)


def test_every_metric_that_is_asked_for_is_one_of_the_code() -> None:
    """The cheap half of what the live test holds: it needs no Prometheus."""
    known = {plain(name) for name in metrics_of_the_code()}
    for path in sorted(DEPLOY.rglob("*")):
        if path.suffix in {".json", ".yml", ".yaml", ".md"}:
            text = re.sub(r"[a-z_]+:kvgate_[a-z0-9_:]+", "", path.read_text("utf-8"))  # recorded names
            assert {plain(name) for name in METRIC.findall(text)} - known == set(), path.name


def test_every_recorded_series_that_is_asked_for_is_recorded() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    asked = {
        name
        for path in (*PROMETHEUS.glob("*.yml"), PROMETHEUS / "README.md")
        for name in re.findall(r"[a-z_]+:kvgate_[a-z0-9_:]+", path.read_text("utf-8"))
    }
    assert asked == recorded


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_has_its_runbook_and_its_tests(name: str) -> None:
    alert = ALERTS[name]
    file, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert file == "deploy/prometheus/README.md"
    assert anchor == name.lower()
    assert anchor in anchors(RUNBOOKS)
    assert alert["labels"]["severity"] in SEVERITIES
    paragraph = re.search(rf"(?ms)^### {name}\n\n(.+?)(?=^##|\Z)", RUNBOOKS)
    assert paragraph
    assert len(paragraph[1]) > 120
    tested = {
        test["name"]: test for path in PROMETHEUS.glob("*.test.yml") for test in yaml.safe_load(path.read_text("utf-8"))["tests"]
    }
    quiet, fires = (bool(told["exp_samples"]) for told in tested[name]["promql_expr_test"])
    assert (quiet, fires) == (False, True)


@pytest.mark.parametrize("name", ALERTS)
def test_what_an_alert_says_of_labels_is_there_to_be_said(name: str) -> None:
    """A label that the expression has not kept would be told as nothing."""
    recorded = {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}
    expression = ALERTS[name]["expr"]
    whole = " ".join([expression, *(text for record, text in recorded.items() if record in expression)])
    kept = {label.strip() for labels in GROUPING.findall(whole) for label in labels.split(",")}
    kept |= {"instance"} if name == "KvgateDown" else set()
    assert set(re.findall(r"\$labels\.(\w+)", str(ALERTS[name]["annotations"]))) - kept == set()


def test_no_runbook_is_left_of_an_alert_that_is_gone() -> None:
    assert set(re.findall(r"(?m)^### (Kvgate\w+)$", RUNBOOKS)) == set(ALERTS)


def test_links_within_the_runbooks_lead_somewhere() -> None:
    assert set(re.findall(r"\]\(#([^)]+)\)", RUNBOOKS)) - anchors(RUNBOOKS) == set()


def test_every_policy_key_that_is_named_can_be_set() -> None:
    keys = {key[:end] for key in key_names(POLICY) for end, sign in enumerate(key + ".") if sign == "."}
    sections = {key.partition(".")[0].removesuffix("[]") for key in keys}
    texts = [path.read_text("utf-8") for path in (PROMETHEUS / "README.md", GRAFANA / "README.md", *GRAFANA.glob("*.py"))]
    named = {word for text in texts for word in re.findall(r"`([a-z]+(?:\[\])?\.[a-z0-9_]+)`", text)}
    assert {word for word in named if word.partition(".")[0].removesuffix("[]") in sections} - keys == set()
    assert "budget.preemptions_per_1000" in named


def test_the_search_for_overlaps_finds_them() -> None:
    def panel(x: int, y: int) -> dict[str, Any]:
        return {"title": f"{x} {y}", "gridPos": {"x": x, "y": y, "w": 12, "h": 8}}

    assert list(overlaps([panel(0, 0), panel(12, 0), panel(0, 8)])) == []
    assert list(overlaps([panel(0, 0), panel(11, 7)])) == ["0 0 and 11 7"]
    assert list(overlaps([panel(13, 0)])) == ["13 0: {'x': 13, 'y': 0, 'w': 12, 'h': 8}"]
