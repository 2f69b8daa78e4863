"""Nothing that was promised to operators and clients is gone: ``deploy/UPGRADING.md`` says what, ``surface.json`` holds it."""

import json
from typing import Any

import pytest

from tests.compatibility.surface import PROMISED, Surface, surface

IN_ORDER = {"Completion", "Notice", "grid"}  # read by position: what is new goes to the end; another grid is another layout


def gone(promised: Any, now: Any, where: str = "") -> list[str]:
    """Return what is in ``promised`` and not in ``now``: members of lists and maps, and plain values that changed."""
    if isinstance(promised, dict):
        there = now if isinstance(now, dict) else {}
        return [one for key, old in promised.items() for one in gone(old, there.get(key), f"{where}/{key}")]
    if isinstance(promised, list):
        there = now if isinstance(now, list) else []
        if where.rpartition("/")[2] in IN_ORDER:
            return [] if there[: len(promised)] == promised else [f"{where}: was {promised}, is {there}"]
        return [f"{where}: {one}" for one in promised if one not in there]
    return [] if promised == now else [f"{where}: was {promised}, is {now}"]


@pytest.fixture(scope="module")
def promised() -> Surface:
    found: Surface = json.loads(PROMISED.read_text("utf-8"))
    return found


def test_nothing_that_was_promised_is_gone(promised: Surface) -> None:
    assert gone(promised, json.loads(json.dumps(surface()))) == [], "see deploy/UPGRADING.md for when something may go"


def test_what_is_promised_is_not_empty(promised: Surface) -> None:
    sizes = {name: len(part) for name, part in promised.items()}
    assert min(sizes.values()) > 5, sizes
    assert {"mode", "queue.wait_max"} <= set(promised["policy_keys"])
    assert promised["metrics"]["kvgate_build_info"] == ["gauge", "version"]
    assert promised["statuses"]["queue_full"] == 429
    assert "/admin/requests" in promised["admin_paths"]


@pytest.mark.parametrize(
    ("promised", "now", "found"),
    [
        ({"a": ["x"]}, {"a": ["y", "x"], "b": []}, []),
        ({"a": ["x"]}, {"a": []}, ["/a: x"]),
        ({"a": {"m": ["gauge", "replica"]}}, {"a": {}}, ["/a/m: gauge", "/a/m: replica"]),
        ({"s": {"full": 429}}, {"s": {"full": 503}}, ["/s/full: was 429, is 503"]),
        ({"Notice": ["a", "b"]}, {"Notice": ["a", "b", "c"]}, []),
        ({"Notice": ["a", "b"]}, {"Notice": ["b", "a"]}, ["/Notice: was ['a', 'b'], is ['b', 'a']"]),
    ],
)
def test_what_is_gone_would_be_found(promised: Surface, now: Surface, found: list[str]) -> None:
    assert gone(promised, now) == found
