"""What runs on this machine, and below whom: from /proc, since a bare system has no ``ps``, and by ``ps`` where there is no /proc."""

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def processes() -> Iterator[tuple[int, int, str]]:
    """Id, parent and state of every process."""
    if not PROC.is_dir():
        told = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], check=True, capture_output=True, text=True)
        for line in told.stdout.splitlines():
            pid, parent, state = line.split()
            yield int(pid), int(parent), state[0]
        return
    for path in PROC.glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            state, parent = path.read_text("latin-1").rpartition(")")[2].split()[:2]
            yield int(path.parent.name), int(parent), state


def children_of(pid: int) -> set[int]:
    """Process ids whose parent it is now."""
    return {child for child, parent, _ in processes() if parent == pid}


def descendants_of(pid: int) -> list[int]:
    """Process ids below it, those next to it first."""
    parents = {child: parent for child, parent, _ in processes()}
    found, generation = list[int](), [pid]
    while generation:
        generation = [child for child, parent in parents.items() if parent in generation]
        found += generation
    return found


def alive(pids: set[int]) -> set[int]:
    """Those of the ids that still run; a zombie does not."""
    return {pid for pid, _, state in processes() if state != "Z"} & pids
