"""Thousands of policy files with one line changed: each is taken, or refused with a fault that names the line. And the schema agrees."""

import json

import pytest
from jsonschema import Draft202012Validator

from proxy.config.policy_file import SCHEMA_FILE, Review, review, shipped_path
from proxy.config.schema import POLICY
from proxy.config.shape import key_names
from proxy.config.written import written
from tests.property.policy_mutations import KINDS, LINES, Expected, Mutation, mutations
from tests.property.policy_text import FULL
from tests.support.yaml_json import json_of

VALIDATOR = Draft202012Validator(json.loads(shipped_path(SCHEMA_FILE).read_text("utf-8")))
TOP_LEVEL = [0, *(index + 1 for index, line in enumerate(LINES) if line and not line.startswith((" ", "-"))), len(LINES) + 2]


def section_of(line: int) -> tuple[int, int]:
    """Return the first line of the top-level key that a line stands below, and the last."""
    start = max(first for first in TOP_LEVEL if first <= line)
    return start, min(first for first in TOP_LEVEL if first > line)


def broken_law(mutation: Mutation, found: Review) -> str | None:
    """Return what is wrong with what was said of a mutated text; None when nothing is."""
    lines = [fault.line for fault in found.faults]
    if not all(str(fault).isprintable() for fault in (*found.faults, *found.warnings)):
        return "a fault that does not print"
    if (found.policy is None) is not bool(lines):
        return "neither a policy nor a fault"
    if mutation.expected is Expected.TAKEN_OR_LINE:
        first, last = section_of(mutation.line)
        return (
            None if all(first <= line <= last for line in lines) else f"faults in {lines}, outside the section {first} to {last}"
        )
    if not lines:
        return "taken"
    if mutation.expected is Expected.AT_LINE:
        return None if mutation.line in lines else f"faults in {lines}"
    return None if all(line >= mutation.line - 1 for line in lines) else f"faults in {lines}, before the line"


def complaints(seed: int, count: int) -> list[str]:
    """Return what goes against the laws among so many mutated texts."""
    told = []
    for mutation in mutations(seed, count):
        found = review(mutation.text, "p.yaml")
        wrong = broken_law(mutation, found) or schema_disagrees(mutation, found)
        if wrong:
            line = mutation.text.splitlines()[mutation.line - 1]
            told.append(f"{mutation.kind}: line {mutation.line} {line!r}: {wrong}: {[str(fault) for fault in found.faults]}")
    return told


def schema_disagrees(mutation: Mutation, found: Review) -> str | None:
    """What ``check`` takes is valid; what it refuses for its shape is not."""
    if found.policy is None and not mutation.shapeless:
        return None
    valid = VALIDATOR.is_valid(json_of(mutation.text))
    return None if valid is (found.policy is not None) else f"valid by the schema: {valid}"


def test_the_text_says_nearly_everything_that_can_be_said() -> None:
    assert review(FULL, "p.yaml").faults == ()
    said = {
        path.replace("[0]", "[]").replace("[1]", "[]").replace("[2]", "[]").replace("list.acme", "list.NAME")
        for path in written(FULL)
    }
    keys = set(key_names(POLICY))
    assert len(keys - said) <= 0.1 * len(keys), sorted(keys - said)


def test_a_few_hundred_mutated_files() -> None:
    assert complaints(1, 300) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_ten_thousand_mutated_files(seed: int) -> None:
    assert complaints(seed, 1000) == []


def test_every_kind_is_there() -> None:
    assert len({mutation.kind for mutation in mutations(1, 300)}) == len(KINDS)
