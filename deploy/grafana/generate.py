"""Write the dashboards: ``python deploy/grafana/generate.py``; with ``--check``, only tell which files are not what it would write."""

import json
import sys
from pathlib import Path

from details import QUALITY_BOARD, REPLICA_BOARD, TENANT_BOARD
from overview import OVERVIEW
from panels import board_json

FOLDER = Path(__file__).parent / "dashboards"


def main() -> int:
    """Return 1 when ``--check`` found a file out of step."""
    behind = []
    for board in (OVERVIEW, REPLICA_BOARD, TENANT_BOARD, QUALITY_BOARD):
        path, text = FOLDER / f"{board.uid}.json", json.dumps(board_json(board), indent=1, ensure_ascii=False) + "\n"
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        behind.append(path.name)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    sys.stdout.write(("\n".join(behind) or "all dashboards are in step") + "\n")
    return int(bool(behind) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
