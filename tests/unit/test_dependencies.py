"""What kvgate may be installed with is above what is known to be at fault; news comes by ``make audit``."""

import re
import tomllib
from pathlib import Path

import pytest

from deploy.audit import listed, lowest, pinned

ROOT = Path(__file__).parent.parent.parent

# The first version without the fault, of faults that reach what kvgate uses of a package.
MENDED = {
    "jinja2": "3.1.6",  # CVE-2024-56326, CVE-2025-27516: out of the sandbox by str.format and |attr
    "starlette": "0.49.1",  # CVE-2025-62727: a Range field costs the square of its length; CVE-2025-54121
    "transformers": "4.53",  # CVE-2025-3777, -3933, -5197, -6051, -6638, -6921: patterns that never end, an address taken for another
    "uvicorn": "0.11.7",  # CVE-2020-7694, -7695: log lines and answers split by a path
    "PyYAML": "5.4",  # CVE-2020-14343: objects out of text
    "redis": "4.5.5",  # CVE-2023-28858, -28859: answers of one call taken for another's
    "dnspython": "2.6.1",  # CVE-2023-29483: a forged answer stops a look-up
    "httpx": "0.23",  # CVE-2021-41945: an address taken for another
}


def versions(lines: list[str]) -> dict[str, tuple[int, ...]]:
    pairs = (line.split("==") for line in lines)
    return {re.sub(r"[-_.]+", "-", name).lower(): number(text) for name, text in pairs}


def number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


@pytest.mark.parametrize("name", MENDED)
def test_the_lowest_version_allowed_is_mended(name: str) -> None:
    allowed = versions(lowest(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))))
    assert allowed[name.lower()] >= number(MENDED[name])


def test_what_is_pinned_is_allowed() -> None:
    allowed = versions(lowest(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))))
    held = versions(pinned((ROOT / "constraints.txt").read_text(encoding="utf-8")))
    assert {name for name in allowed.keys() & held.keys() if held[name] < allowed[name]} == set()
    assert {"jinja2", "starlette", "httpx"} <= held.keys()


def test_the_list_of_old_faults_is_read_by_name_and_version() -> None:
    fault = {"id": "pyup.io-1", "cve": None, "advisory": "said", "specs": ["<2.0", ">=3,<3.1"]}
    told = {"$meta": {"timestamp": 0}, "Some_Package": [fault, fault | {"cve": "CVE-1", "specs": ["==9"]}]}
    lines = ["some-package==1.9.9", "some.package==2.0", "Some-Package==3.0.5", "other==1.0", "some-package==9"]
    assert listed(told, lines) == [
        "some-package 1.9.9: pyup.io-1: said", "Some-Package 3.0.5: pyup.io-1: said", "some-package 9: CVE-1: said",
    ]  # fmt: skip
