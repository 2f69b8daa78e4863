"""What operators can set or see is written down, and what is written down exists.

Policy keys, outcomes and variables are documented in ``policies/README.md`` and ``proxy/cli/README.md``, metrics in ``deploy/README.md``.
"""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from proxy import __version__
from proxy.cli import COMMANDS, command_parser
from proxy.config.schema import POLICY
from proxy.config.settings import VARIABLES
from proxy.config.shape import Section, key_names
from proxy.core.outcome import Mode, Outcome

ROOT = Path(__file__).parents[1]
POLICIES = (ROOT / "policies" / "README.md").read_text("utf-8")
COMMAND_LINE = (ROOT / "proxy" / "cli" / "README.md").read_text("utf-8")
DEPLOY = (ROOT / "deploy" / "README.md").read_text("utf-8")
METRIC = re.compile(r"\bkvgate_[a-z][a-z0-9_]*[a-z0-9]\b")


def quoted_in(text: str) -> set[str]:
    """Return every `word` that a document sets in code."""
    return set(re.findall(r"`([^`\n]+)`", text))


def metrics_in(source: str) -> Iterator[str]:
    """Yield metric names in the string literals of a module; docstrings are strings too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from METRIC.findall(node.value)


def policy_keys_in(source: str, sections: str) -> Iterator[str]:
    """Yield what a module gives as ``policy_key``, and every string that reads like a key of one of the sections."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "policy_key" and isinstance(node.value, ast.Constant):
            yield str(node.value.value)
        elif isinstance(node, ast.Constant) and re.fullmatch(rf"({sections})\.(?!py$)[a-z_0-9]+", str(node.value)):
            yield str(node.value)


def metrics_of_the_code() -> set[str]:
    """Return every metric that the package names."""
    return {name for path in (ROOT / "proxy").rglob("*.py") for name in metrics_in(path.read_text("utf-8"))}


def plain(name: str) -> str:
    """Return a metric's name without what the exposition adds."""
    return re.sub(r"_(total|bucket|count|sum|created|info)$", "", name)


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """Return every long flag of a command."""
    return {option for action in parser._actions for option in action.option_strings if option.startswith("--")} - {"--help"}


def test_every_policy_key_is_documented_and_no_other() -> None:
    keys = set(key_names(POLICY))
    assert keys - quoted_in(POLICIES) == set()
    rows = set(re.findall(r"^\| `([a-z_]+(?:\[\])?(?:\.(?:[a-z0-9_]+|NAME))*)` \|", POLICIES, re.MULTILINE))
    assert rows - keys - {outcome.value for outcome in Outcome} - {mode.value for mode in Mode} == set()


def test_every_key_that_an_answer_names_can_be_set() -> None:
    sections = "|".join(name for name, key in POLICY.keys.items() if isinstance(key.reader, Section))
    named = {word for path in (ROOT / "proxy").rglob("*.py") for word in policy_keys_in(path.read_text("utf-8"), sections)}
    assert named - set(key_names(POLICY)) == set()


def test_the_search_for_keys_finds_them() -> None:
    source = 'Refusal(policy_key="nothing", gate="queue.wait_max")\nbound = ("limits.typo", 1)\nother = "queue.py"\n'
    assert set(policy_keys_in(source, "queue|limits")) == {"nothing", "queue.wait_max", "limits.typo"}


def test_every_outcome_and_mode_is_documented() -> None:
    assert {outcome.value for outcome in Outcome} - quoted_in(POLICIES) == set()
    assert {mode.value for mode in Mode} - quoted_in(POLICIES) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_flag_is_documented(name: str) -> None:
    section = re.search(rf"^## kvgate {name}\n(.*?)(?=^## |\Z)", COMMAND_LINE, re.MULTILINE | re.DOTALL)
    assert section, f"proxy/cli/README.md has no section for kvgate {name}"
    documented = set(re.findall(r"^\| `(--[a-z-]+)", section[1], re.MULTILINE))
    assert documented == flags_of(command_parser(name)[0])


def test_every_variable_is_documented() -> None:
    assert set(VARIABLES.values()) - quoted_in(COMMAND_LINE) == set()


def test_every_metric_is_documented_and_no_other() -> None:
    assert {plain(name) for name in metrics_of_the_code()} == {plain(name) for name in METRIC.findall(DEPLOY)}


def test_one_version_is_told_everywhere() -> None:
    chart = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "chart" / "Chart.yaml").read_text("utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    assert re.search(rf"^## {re.escape(__version__)}\b", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)


def test_the_search_for_metrics_finds_them() -> None:
    source = '"""Counts kvgate_a_total."""\nNAME = "kvgate_b_seconds"\nx = f"kvgate_c_ratio{NAME}"\nkvgate_d = 1\n'
    assert set(metrics_in(source)) == {"kvgate_a_total", "kvgate_b_seconds", "kvgate_c_ratio"}
