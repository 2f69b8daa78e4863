"""Ask PyPI for known faults of what kvgate depends on: every version that constraints.txt pins, and the lowest that pyproject.toml allows.

    make audit

pip-audit asks the JSON API of PyPI, package by package. A mirror without that API knows of no faults, which is no answer: ``--strict``
makes that a failure. Not a part of CI: a change must not fail because of news. Run it before a release, and by a timer.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOWEST = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*>=\s*([0-9][0-9.]*)")
PINNED = re.compile(r"([A-Za-z0-9._-]+)==(\S+)")


def lowest(project: dict[str, dict[str, object]]) -> list[str]:
    """``NAME==VERSION`` of the lowest version that an installation may have, of what kvgate and its extras need."""
    extras: dict[str, list[str]] = project["project"]["optional-dependencies"]  # type: ignore[assignment]
    needed: list[str] = [*project["project"]["dependencies"], *(one for extra in extras.values() for one in extra)]  # type: ignore[misc]
    found = [match for line in needed if (match := LOWEST.match(line))]
    return sorted({f"{match[1]}=={match[2]}" for match in found})


def pinned(text: str) -> list[str]:
    """The lines of constraints.txt that pin a version."""
    return [line for line in text.splitlines() if PINNED.fullmatch(line)]


def main() -> int:
    """Ask for both; 1 where something is known, or where nothing could be asked."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    sets = {"pinned": pinned((ROOT / "constraints.txt").read_text(encoding="utf-8")), "lowest allowed": lowest(project)}
    code = 0
    for name, lines in sets.items():
        sys.stdout.write(f"{name}: {len(lines)} packages\n")
        sys.stdout.flush()
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
            file.flush()
            line = [sys.executable, "-m", "pip_audit", "--strict", "--no-deps", "--disable-pip", "-r", file.name]
            code |= bool(subprocess.run(line, check=False).returncode)  # noqa: S603
    return code


if __name__ == "__main__":
    sys.exit(main())
