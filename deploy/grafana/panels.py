"""Grafana's dashboard JSON from a few words: a panel is a title, a unit, queries and one sentence on how to read it.

The layout flows: panels of a row stand side by side until its 24 columns are full. Every selector of a kvgate series gets the
matcher ``job=~"$job"``, so that queries are written, and read, without it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 41  # Grafana 12; older ones from 10 on read it as well
TAG = "kvgate"
SERIES = re.compile(r"\b(kvgate_[a-z0-9_]+)(\{)?")
GREEN, YELLOW, RED = "green", "#EAB839", "red"

Json = dict[str, Any]
Query = tuple[str, str]  # PromQL, and the legend of what it returns


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. ``steps``: where values turn yellow and red, the other way round if the first is above the second.

    ``words`` replaces numbers by text. ``link`` leads from a series to a board: its uid, its variable, the label that fills it.
    """

    title: str
    unit: str
    queries: Sequence[Query]
    text: str
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    steps: tuple[float, float] | None = None
    words: tuple[tuple[float, str, str], ...] = ()  # value, text, colour
    stacked: bool = False
    maximum: float | None = None
    link: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of a board, from the values of a label."""

    name: str
    label: str
    query: str
    several: bool = True


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard: how to read it, then rows of panels."""

    uid: str
    title: str
    description: str
    reading: str
    rows: Sequence[tuple[str, Sequence[Panel]]]
    variables: Sequence[Variable] = ()


def with_job(expression: str) -> str:
    """Return the query with every kvgate selector bound to the chosen jobs."""
    return SERIES.sub(lambda match: f'{match[1]}{{job=~"$job"{"," if match[2] else "}"}', expression)


def board_json(board: Board) -> Json:
    """Return the dashboard as Grafana stores it."""
    return {
        "uid": board.uid, "title": board.title, "description": board.description, "tags": [TAG], "schemaVersion": SCHEMA_VERSION,
        "editable": True, "graphTooltip": 1, "timezone": "browser", "refresh": "10s", "time": {"from": "now-1h", "to": "now"},
        "annotations": {"list": [_events()]}, "links": [_board_links()], "panels": list(_panels(board)),
        "templating": {"list": [_datasource_variable(), *map(_variable, (JOB, *board.variables))]},
    }  # fmt: skip


JOB = Variable("job", "Job", "label_values(kvgate_build_info, job)")


def _panels(board: Board) -> list[Json]:
    """Place everything; ids count from 1."""
    reading_lines = 2 + board.reading.count("\n")
    height = max(4, reading_lines // 2 + 2)
    placed: list[Json] = [{
        "id": 1, "type": "text", "title": "How to read this", "gridPos": {"x": 0, "y": 0, "w": COLUMNS, "h": height},
        "options": {"mode": "markdown", "content": board.reading},
    }]  # fmt: skip
    y = height
    for title, panels in board.rows:
        placed.append({
            "id": len(placed) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
        })  # fmt: skip
        x, y, tallest = 0, y + 1, 0
        for panel in panels:
            if x + panel.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            placed.append({"id": len(placed) + 1, "gridPos": place, **_panel(panel)})
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return placed


def _panel(panel: Panel) -> Json:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": DATASOURCE, "expr": with_job(expression), "legendFormat": legend,
         "editorMode": "code", "range": panel.kind != "table", "instant": panel.kind == "table",
         **({"format": "table"} if panel.kind == "table" else {})}
        for index, (expression, legend) in enumerate(panel.queries)
    ]  # fmt: skip
    defaults: Json = {"unit": panel.unit, "mappings": _mappings(panel), "thresholds": _thresholds(panel), "links": _links(panel)}
    if panel.unit not in ("none", "short", "dateTimeAsIso") or panel.maximum is not None:
        defaults["min"] = 0
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    options, custom = _style(panel)
    return {
        "type": panel.kind, "title": panel.title, "description": panel.text, "datasource": DATASOURCE, "targets": targets,
        "fieldConfig": {"defaults": {**defaults, **({"custom": custom} if custom else {})}, "overrides": []}, "options": options,
    }  # fmt: skip


def _style(panel: Panel) -> tuple[Json, Json]:
    """Return options and custom field options of the panel's kind."""
    if panel.kind == "stat":
        reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": reduce, "colorMode": "background", "graphMode": "area", "textMode": "value"}, {}
    if panel.kind == "state-timeline":
        hidden = {"showLegend": False, "displayMode": "list", "placement": "bottom", "calcs": []}
        return {"showValue": "auto", "rowHeight": 0.8, "mergeValues": True, "legend": hidden}, {"fillOpacity": 80}
    if panel.kind == "table":
        return {"showHeader": True, "cellHeight": "sm"}, {}
    legend = {"showLegend": True, "displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]}
    custom: Json = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 40 if panel.stacked else 8, "showPoints": "never",
                    "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
                    "thresholdsStyle": {"mode": "line" if panel.steps else "off"}}  # fmt: skip
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}, custom


def _thresholds(panel: Panel) -> Json:
    colours: list[tuple[float | None, str]] = [(None, GREEN)]
    if panel.steps is not None:
        first, second = panel.steps
        # High is bad from the first step on, or low is: then the scale begins at red.
        high_is_bad = first < second
        colours = (
            [(None, GREEN), (first, YELLOW), (second, RED)] if high_is_bad else [(None, RED), (second, YELLOW), (first, GREEN)]
        )
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in colours]}


def _mappings(panel: Panel) -> list[Json]:
    shown = {f"{value:g}": {"text": text, "color": colour} for value, text, colour in panel.words}
    return [{"type": "value", "options": shown}] if shown else []


def _links(panel: Panel) -> list[Json]:
    if panel.link is None:
        return []
    uid, label = panel.link
    url = f"/d/{uid}?var-{label}=${{__field.labels.{label}}}&${{job:queryparam}}&${{__url_time_range}}"
    return [{"title": f"This {label}", "url": url}]


def _board_links() -> Json:
    return {"type": "dashboards", "title": "kvgate", "icon": "external link", "tooltip": "", "url": "", "tags": [TAG],
            "asDropdown": False, "targetBlank": False, "includeVars": True, "keepTime": True}  # fmt: skip


def _events() -> Json:
    """Vertical lines where something changed that explains what follows."""
    changed = with_job("changes(kvgate_policy_last_good_timestamp_seconds[1m]) > 0 or resets(kvgate_requests_total[1m]) > 0")
    return {"name": "Policy taken up, kvgate restarted", "datasource": DATASOURCE, "enable": True, "hide": False, "iconColor": "blue",
            "expr": changed}  # fmt: skip


def _datasource_variable() -> Json:
    return {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "hide": 0, "refresh": 1,
            "multi": False, "includeAll": False, "regex": ""}  # fmt: skip


def _variable(variable: Variable) -> Json:
    query = variable.query if variable is JOB else with_job(variable.query)
    return {"type": "query", "name": variable.name, "label": variable.label, "datasource": DATASOURCE,
            "query": {"query": query, "refId": "variable"}, "refresh": 2, "sort": 1, "hide": 0, "multi": variable.several,
            "includeAll": variable.several, "regex": "",
            **({"allValue": ".+", "current": {"text": "All", "value": "$__all"}} if variable.several else {})}  # fmt: skip
