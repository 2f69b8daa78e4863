"""``kvgate check``: tell everything that is wrong with policy files."""

import argparse
import json
import sys
from pathlib import Path

from proxy.config.faults import Fault, PolicyError
from proxy.config.policy_file import SCHEMA_FILE, load, shipped_path
from proxy.core.policy import Policy


class _PrintSchema(argparse.Action):
    """Prints the schema and ends, as ``--version`` does: no FILE is needed beside it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        print(shipped_path(SCHEMA_FILE).read_text("utf-8"), end="")
        parser.exit()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="a policy file; exit code 1 when one of them has a fault"
    )
    parser.add_argument(
        "--schema", action=_PrintSchema, nargs=0, help="print the JSON Schema of policy files, for editors, and check nothing"
    )
    parser.add_argument("--json", action="store_true", help="tell it as one JSON object on stdout")


def run(arguments: argparse.Namespace) -> int:
    """Check every file: 0 when all are good, else 1."""
    found = {str(path): _checked(path) for path in arguments.files}
    if arguments.json:
        print(json.dumps({"files": [_as_dict(file, result) for file, result in found.items()]}, indent=2))
    else:
        for file, result in found.items():
            if isinstance(result, Policy):
                print(f"{file}: good: {_summary(result)}")
            else:
                print("\n".join(map(str, result)), file=sys.stderr)
    return 0 if all(isinstance(result, Policy) for result in found.values()) else 1


def _checked(path: Path) -> Policy | tuple[Fault, ...]:
    try:
        return load(path)
    except PolicyError as error:
        return error.faults


def _as_dict(file: str, result: Policy | tuple[Fault, ...]) -> dict[str, object]:
    faults = () if isinstance(result, Policy) else result
    return {"file": file, "good": isinstance(result, Policy), "faults": [fault.as_dict() for fault in faults]}


def _summary(policy: Policy) -> str:
    counts = ((len(policy.replicas), "replica"), (len(policy.classes), "class"))
    words = [f"{count} {noun if count == 1 else noun + ('es' if noun.endswith('s') else 's')}" for count, noun in counts]
    return ", ".join([f"mode {policy.mode}", *words])
