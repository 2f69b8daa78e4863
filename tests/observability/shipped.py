"""What is shipped for Prometheus and Grafana, as queries: every panel's and every rule's, and the selectors within them."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
GRAFANA, PROMETHEUS = DEPLOY / "grafana", DEPLOY / "prometheus"
RULE_FILES = (PROMETHEUS / "recording.rules.yml", PROMETHEUS / "alerts.rules.yml")
# A name with its matchers. Recorded series have colons; all others that are asked for are kvgate's or Prometheus' own two.
SELECTOR = re.compile(r"(?<![\w:])((?:[a-z_]+:kvgate_[a-z0-9_:]+|kvgate_[a-z0-9_]+|up|ALERTS)\b)(\{[^}]*\})?")
GROUPING = re.compile(r"\b(?:by|on|group_left)\s*\(([^)]*)\)")
LEGEND_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, slots=True)
class ShippedQuery:
    """One query and where it stands. ``quiet``: empty while all is well, as an alert's is; then only its selectors must find something."""

    place: str
    expression: str
    legend: str = ""
    quiet: bool = False

    def selectors(self) -> list[str]:
        """Return every series selector, once."""
        return list(dict.fromkeys(name + matchers for name, matchers in SELECTOR.findall(self.expression)))

    def labels(self) -> set[str]:
        """Return the labels that it groups or joins by, or shows."""
        grouped = ",".join(GROUPING.findall(self.expression)).replace(" ", "").split(",")
        return ({*grouped, *LEGEND_LABEL.findall(self.legend)} - {"", "le"}) | set()


def dashboards() -> dict[str, dict[str, Any]]:
    """Return every shipped dashboard by its file's name."""
    return {path.name: json.loads(path.read_text("utf-8")) for path in sorted((GRAFANA / "dashboards").glob("*.json"))}


def panel_queries(name: str, board: Mapping[str, Any], values: Mapping[str, str]) -> Iterator[ShippedQuery]:
    """Yield the queries of a dashboard's panels, variables and annotations, with ``$NAME`` replaced by ``values``."""
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            place = f"{name}: {panel['title']}: {target['refId']}"
            yield ShippedQuery(place, filled(target["expr"], values), target["legendFormat"])
    for note in board["annotations"]["list"]:
        yield ShippedQuery(f"{name}: annotation {note['name']}", filled(note["expr"], values), quiet=True)
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            yield ShippedQuery(f"{name}: ${variable['name']}", f"count by ({label}) ({filled(series, values)})")


def filled(expression: str, values: Mapping[str, str]) -> str:
    """Replace every variable. Raises KeyError for one that is not known."""
    return re.sub(r"\$\{?(\w+)\}?", lambda match: values[match[1]], expression)


def rules() -> Iterator[dict[str, Any]]:
    """Yield every shipped rule."""
    for path in RULE_FILES:
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]:
            yield from group["rules"]


def rule_queries() -> Iterator[ShippedQuery]:
    """Yield the query of every rule."""
    for rule in rules():
        yield ShippedQuery(f"rule {rule.get('alert') or rule['record']}", rule["expr"], quiet="alert" in rule)
