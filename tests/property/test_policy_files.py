"""Whatever is done to a policy file, it is either taken or refused with faults that name the file and a line within it.

What is taken is valid by the JSON Schema that editors go by.
"""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from proxy.config.faults import Fault, PolicyError
from proxy.config.policy_file import SCHEMA_FILE, default_path, parse, shipped_path
from tests.support.yaml_json import json_of

VALIDATOR = Draft202012Validator(json.loads(shipped_path(SCHEMA_FILE).read_text("utf-8")))

# Without its comments: half the text, and a changed comment changes nothing.
SHIPPED = re.sub(r" *#.*", "", default_path().read_text("utf-8")) + (
    "\nreplicas:\n  - http://a:1\n  - {url: http://b:2, kv_blocks: 512, headers: {x-zone: a}}\n"
    "classes:\n  - {name: chat, match: {model: 'm*', headers: {x-class: chat}}, priority: 3, ttft: 2s}\n"
)
MARKS = (*"\t\n:{}[]>'\"#%-~", "  ", "- ", "&a ", "*a", "!!binary ", "!!python/object:x ", "<<: ", "? ", "| ", "---\n", "...\n")
VALUES = ("null", "-1", "1e400", "9" * 400, ".nan", "no", "0b1", "1_0")
STRANGE = ("\x00", "\x85", "\u2028", "\ufeff", "\ud7ff", "𝟙", "é")
SNIPPETS = st.sampled_from((*MARKS, *VALUES, *STRANGE)) | st.text(max_size=4)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """Return the text with a few spans replaced by snippets."""
    text = SHIPPED
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        length = draw(st.sampled_from([0, 0, 1, 3, 20]))
        text = text[:start] + draw(SNIPPETS) + text[start + length :]
    return text


def faults_of(text: str) -> tuple[Fault, ...]:
    """Return the faults, none for a text that is taken."""
    try:
        parse(text, "p.yaml")
    except PolicyError as error:
        return error.faults or pytest.fail("refused without a fault")
    return ()


def taken_or_refused(text: str) -> None:
    """Hold the law for one text."""
    lines = len(text.splitlines()) + 1
    faults = faults_of(text)
    assert faults or VALIDATOR.is_valid(json_of(text))
    for fault in faults:
        assert 0 <= fault.line <= lines
        assert str(fault).startswith("p.yaml:")
        assert str(fault).isprintable()


@settings(max_examples=100, deadline=None)
@given(damaged())
def test_a_damaged_policy(text: str) -> None:
    taken_or_refused(text)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    taken_or_refused(text)


def test_the_undamaged_one_is_taken() -> None:
    assert len(parse(SHIPPED, "p.yaml").replicas) == 2
