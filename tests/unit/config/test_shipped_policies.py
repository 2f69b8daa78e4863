"""The shipped policies: short, without a fault or a warning, every number with its reason beside it, and all of them in the guide."""

import re
from pathlib import Path

import pytest

from proxy.config.policy_file import review
from proxy.core.policy import Policy

POLICIES = Path(__file__).parents[3] / "policies"
SHIPPED = ("agents", "default", "interactive-and-batch", "multi-tenant", "observe", "reasoning")
LINES_MAX = 25
NUMBER = re.compile(r"^\s*(?:- )?[a-z_]+: +[-0-9\"]")


def lines_of(name: str) -> list[str]:
    """Return a policy's lines."""
    return (POLICIES / f"{name}.yaml").read_text("utf-8").splitlines()


def test_these_are_all() -> None:
    assert sorted(path.stem for path in POLICIES.glob("*.yaml")) == sorted(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_it_has_neither_faults_nor_warnings(name: str) -> None:
    found = review((POLICIES / f"{name}.yaml").read_text("utf-8"), name)
    assert (found.faults, found.warnings) == ((), ())
    assert isinstance(found.policy, Policy)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_number_has_its_reason(name: str) -> None:
    assert [line for line in lines_of(name) if NUMBER.match(line) and "# " not in line] == []


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "default"])
def test_it_is_short(name: str) -> None:
    assert len(lines_of(name)) <= LINES_MAX


@pytest.mark.parametrize("name", SHIPPED)
def test_the_guide_tells_of_it(name: str) -> None:
    assert f"[`{name}.yaml`]({name}.yaml)" in (POLICIES / "README.md").read_text("utf-8")
