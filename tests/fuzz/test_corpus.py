"""What fuzzing found, and examples to begin from: every target keeps its promises on them."""

from pathlib import Path

import pytest

from tests.fuzz.run import CORPUS
from tests.fuzz.targets import TARGETS

FILES = sorted(path for path in CORPUS.glob("*/*") if path.is_file())


@pytest.mark.parametrize("path", FILES, ids=[f"{path.parent.name}-{path.name}" for path in FILES])
def test_promises_are_kept(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


def test_every_target_has_a_corpus() -> None:
    assert {path.parent.name for path in FILES} == set(TARGETS)
