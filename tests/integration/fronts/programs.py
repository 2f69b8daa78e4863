"""Where ``setup.sh`` put the programs."""

import os
from pathlib import Path

import pytest

HOME = Path(os.environ.get("KVGATE_FRONTS_HOME") or Path(__file__).parents[3] / ".kvgate" / "fronts")


def program(name: str) -> Path:
    """Return a program of that environment; a missing one is a failure."""
    path = HOME / "venv" / "bin" / name
    if not path.exists():
        pytest.fail(f"{path} is missing: run tests/integration/fronts/setup.sh")
    return path
