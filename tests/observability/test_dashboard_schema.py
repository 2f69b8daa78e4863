"""Dashboards against Grafana's own types, from its SDK: they keep what they know, so what is lost on the way through is a fault."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.observability.shipped import dashboards

pytestmark = pytest.mark.observability


def through_the_types(board: dict[str, Any]) -> Any:
    """Read a dashboard into Grafana's types and write it again."""
    import json

    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(board)))


def lost(given: Any, kept: Any, place: str = "") -> Iterator[str]:
    """Yield what is in ``given`` and not, or otherwise, in ``kept``."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key in kept:
                yield from lost(value, kept[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}"
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for index, value in enumerate(given):
            yield from lost(value, kept[index], f"{place}[{index}]")
    elif given != kept:
        yield f"{place}: {given!r} became {kept!r}"


@pytest.mark.parametrize("name", dashboards())
def test_a_dashboard_is_all_known_to_grafana(name: str) -> None:
    board = dashboards()[name]
    kept = through_the_types(board)
    assert list(lost(board, kept)) == []
    assert board["schemaVersion"] >= 41


def test_a_misspelt_key_is_found() -> None:
    board = dashboards()["kvgate-overview.json"]
    board["panels"][2]["fieldConfig"]["defaults"]["unti"] = "s"
    board["panels"][2]["targets"][0]["exprr"] = "up"
    assert list(lost(board, through_the_types(board))) == [
        ".panels[2].targets[0].exprr",
        ".panels[2].fieldConfig.defaults.unti",
    ]
