"""The floors of design and package docstring: imports go downward only, and a breach is really found."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter over the ``proxy`` package of a folder."""
    return subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def floors() -> list[str]:
    """Return the names of the layers, as pyproject.toml lists them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [name.strip() for layer in layers for name in layer.split("|")]


def test_imports_go_downward_only() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("planted", "source", "broken"),
    [
        ("proxy/core/planted.py", "import proxy.wire", "floors BROKEN"),
        ("proxy/serving/planted.py", "import proxy.adapters", "floors BROKEN"),
        ("proxy/adapters/planted.py", "import proxy.serving", "floors BROKEN"),
        ("proxy/newfloor/__init__.py", "", "proxy.newfloor"),
        ("proxy/core/planted.py", "import asyncio", "core is told, never asks BROKEN"),
        ("proxy/wire/planted.py", "from os import environ", "wire does no I/O BROKEN"),
    ],
)
def test_a_breach_is_found(tmp_path: Path, planted: str, source: str, broken: str) -> None:
    """The real contracts, over a bare package with every floor and one planted breach."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for floor in floors():
        (tmp_path / "proxy" / floor).mkdir(parents=True)
        (tmp_path / "proxy" / floor / "__init__.py").touch()
    (tmp_path / "proxy" / "__init__.py").touch()
    assert lint_imports(tmp_path).returncode == 0
    target = tmp_path / planted
    target.parent.mkdir(exist_ok=True)
    target.write_text(source, encoding="utf-8")
    result = lint_imports(tmp_path)
    assert result.returncode != 0
    assert broken in result.stdout
