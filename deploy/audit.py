"""Ask PyPI for known faults of what kvgate depends on: every version that constraints.txt pins, and the lowest that pyproject.toml allows.

    make audit

Two sources. pip-audit asks the JSON API of PyPI, package by package; a mirror without that API knows of no faults, which is no answer:
``--strict`` makes that a failure. Where it gives none, there is still the list that the package safety-db holds, whose date is told: what
came to be known after it, it does not know, so that it can say *bad* and never *good*.

Exit code: 0 nothing is known, 1 something is, 2 PyPI gave no answer and the list knows of nothing.

Not a part of CI: a change must not fail because of news. Run it before a release, and by a timer.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

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


def listed(advisories: Mapping[str, object], lines: Iterable[str]) -> list[str]:
    """Of ``NAME==VERSION`` lines those that safety-db's list has, with what it says of them."""
    known = {canonicalize_name(name): said for name, said in advisories.items() if not name.startswith("$")}
    found = []
    for name, version in (line.split("==") for line in lines):
        for one in known.get(canonicalize_name(name), ()):  # type: ignore[attr-defined]
            hit = any(SpecifierSet(spec).contains(version, prereleases=True) for spec in one["specs"])
            found += [f"{name} {version}: {one['cve'] or one['id']}: {one['advisory']}"] if hit else []
    return found


def asked(lines: Iterable[str]) -> bool | None:
    """Ask PyPI: whether it knows of nothing; None where it gave no answer."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        line = [sys.executable, "-m", "pip_audit", "--strict", "--no-deps", "--disable-pip", "-f", "json", "-r", file.name]
        ran = subprocess.run(line, check=False, stdout=subprocess.PIPE, text=True)  # noqa: S603
    try:
        told = json.loads(ran.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return None
    faults = [(one["name"], one["version"], fault["id"]) for one in told for fault in one.get("vulns", ())]
    for name, version, fault in faults:
        sys.stdout.write(f"  {name} {version}: {fault}\n")
    return not faults if ran.returncode in {0, 1} else None


def main() -> int:
    """Ask for both sets."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    sets = {"pinned": pinned((ROOT / "constraints.txt").read_text(encoding="utf-8")), "lowest allowed": lowest(project)}
    held = distribution("safety-db").locate_file("safety_db/insecure_full.json")  # the package itself cannot be imported
    advisories = json.loads(Path(str(held)).read_text(encoding="utf-8"))
    of = datetime.fromtimestamp(advisories["$meta"]["timestamp"], UTC)
    code = 0
    for name, lines in sets.items():
        sys.stdout.write(f"{name}: {len(lines)} packages\n")
        sys.stdout.flush()
        good, old = asked(lines), listed(advisories, lines)
        told = {True: "knows of nothing", False: "knows of the above", None: "gave no answer"}[good]
        sys.stdout.write(f"  PyPI {told}. The list of {of:%Y-%m-%d} knows of {len(old) or 'nothing'}\n")
        sys.stdout.writelines(f"  {line}\n" for line in old)
        if old or good is False:
            code = 1
        elif good is None and code == 0:
            code = 2
        sys.stdout.flush()
    return code


if __name__ == "__main__":
    sys.exit(main())
