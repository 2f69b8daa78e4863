"""Everything that ``deploy/UPGRADING.md`` promises, as one JSON-like value, read from the code as it is.

``python -m tests.compatibility.surface`` writes it to ``surface.json``, which is what was promised. Do that after *adding* something; the
test fails where something of it is gone.
"""

import json
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from proxy.cli import COMMANDS, command_parser
from proxy.config.schema import POLICY
from proxy.config.settings import VARIABLES
from proxy.config.shape import key_names
from proxy.core.exchange import Completion
from proxy.core.grid import COARSE_RATIO, FINE_STEPS, FINE_UNTIL_STEPS
from proxy.core.outcome import Outcome, Refusal
from proxy.core.override import Override
from proxy.core.shared import Record
from proxy.core.shared_health import Notice
from proxy.ports.store import ProxyCard
from proxy.wire.answers import answer

ROOT = Path(__file__).parents[2]
PROMISED = Path(__file__).with_name("surface.json")
ROW = re.compile(r"^\| `(kvgate_[a-z0-9_]+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
IN_STREAMS = {Outcome.CUT_OFF, Outcome.COMPLETED, Outcome.CANCELLED}  # no status of ours

Surface = dict[str, Any]


def surface() -> Surface:
    """Read it. ``tests/unit/adapters/test_metric_names.py`` holds the table of metrics against what is exported."""
    table = (ROOT / "deploy" / "README.md").read_text("utf-8")
    sources = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "proxy").rglob("*.py")))
    return {
        "policy_keys": sorted(key_names(POLICY)),
        "metrics": {name: [kind, *sorted(re.findall(r"`(\w+)`", labels))] for name, kind, labels in sorted(ROW.findall(table))},
        "headers": sorted(set(re.findall(r"\bx-kvgate-[a-z]+(?:-[a-z]+)*", sources))),
        "statuses": {
            outcome.value: answer(Refusal(outcome, gate="", message=""), jitter=0.0, brief=True).status
            for outcome in Outcome
            if outcome not in IN_STREAMS
        },
        "outcomes": sorted(outcome.value for outcome in Outcome),
        "admin_paths": sorted(set(re.findall(r'"(/(?:admin/[a-z]+|metrics/workers))', sources))),
        "variables": sorted({*VARIABLES.values(), *re.findall(r'"(KVGATE_[A-Z_]+)"', sources)}),
        "flags": {name: sorted(flags_of(name)) for name in COMMANDS},
        "shared": {
            **{kind.__name__: [one.name for one in fields(kind)] for kind in (Record, ProxyCard, Override)},
            **{kind.__name__: list(kind._fields) for kind in (Completion, Notice)},
            "grid": [FINE_STEPS, FINE_UNTIL_STEPS, COARSE_RATIO],
        },
    }


def flags_of(command: str) -> set[str]:
    """Return a command's flags."""
    parser = command_parser(command)[0]
    return {flag for action in parser._actions for flag in action.option_strings}


if __name__ == "__main__":
    PROMISED.write_text(json.dumps(surface(), indent=1, sort_keys=True) + "\n", "utf-8")
    sys.stdout.write(f"wrote {PROMISED.relative_to(ROOT)}\n")
