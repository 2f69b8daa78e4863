"""``kvgate check``: tell everything that is wrong with policy files."""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from proxy.config.faults import Fault, UnreadableError
from proxy.config.policy_file import SCHEMA_FILE, Review, read, review, shipped_path
from proxy.core.policy import Policy

GOOD, FAULTY, UNREADABLE = 0, 1, 2


class _PrintAndEnd(argparse.Action):
    """Prints what ``const`` returns and ends, as ``--version`` does: no FILE is needed beside it."""

    const: Callable[[], str]

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        print(self.const(), end="")
        parser.exit()


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of one file, as an exit code of its own, and all that is to be said of it."""

    file: str
    code: int
    policy: Policy | None
    faults: tuple[Fault, ...]
    warnings: tuple[Fault, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="a policy file; exit code 1 when one of them has a fault, 2 when one cannot be read",
    )
    parser.add_argument("--strict", action="store_true", help="warnings are faults too")
    parser.add_argument("--json", action="store_true", help="tell it as one JSON object on stdout")
    parser.add_argument(
        "--schema",
        action=_PrintAndEnd,
        nargs=0,
        const=_schema,
        help="print the JSON Schema of policy files, for editors, and check nothing",
    )
    parser.add_argument(
        "--hash-key",
        action=_PrintAndEnd,
        nargs=0,
        const=_hashed_key,
        help="read an API key from stdin, print the SHA-256 that a policy names it by, and check nothing",
    )


def run(arguments: argparse.Namespace) -> int:
    """Check every file: 0 when all are good, 1 when one has a fault, 2 when one cannot be read."""
    found = [_checked(path, strict=arguments.strict) for path in arguments.files]
    if arguments.json:
        print(json.dumps({"files": [_as_dict(checked) for checked in found]}, indent=2))
    else:
        for checked in found:
            for fault in sorted((*checked.faults, *checked.warnings), key=lambda one: (one.line, one.column)):
                print(fault, file=sys.stderr)
            if checked.policy is not None and checked.code == GOOD:
                print(f"{checked.file}: good: {_summary(checked.policy)}")
    return max(checked.code for checked in found)


def _checked(path: Path, *, strict: bool) -> Checked:
    try:
        found: Review = review(read(path), str(path))
    except UnreadableError as error:
        return Checked(str(path), UNREADABLE, None, error.faults)
    faulty = bool(found.faults) or (strict and bool(found.warnings))
    return Checked(str(path), FAULTY if faulty else GOOD, found.policy, found.faults, found.warnings)


def _as_dict(checked: Checked) -> dict[str, object]:
    return {
        "file": checked.file,
        "good": checked.code == GOOD,
        "faults": [fault.as_dict() for fault in checked.faults],
        "warnings": [fault.as_dict() for fault in checked.warnings],
    }


def _summary(policy: Policy) -> str:
    counts = ((len(policy.replicas), "replica"), (len(policy.classes), "class"))
    words = [f"{count} {noun if count == 1 else noun + ('es' if noun.endswith('s') else 's')}" for count, noun in counts]
    return ", ".join([f"mode {policy.mode}", *words])


def _schema() -> str:
    return shipped_path(SCHEMA_FILE).read_text("utf-8")


def _hashed_key() -> str:
    """The line end that ``echo`` adds is no part of the key."""
    key = sys.stdin.buffer.readline().rstrip(b"\r\n")
    return hashlib.sha256(key).hexdigest() + "\n"
