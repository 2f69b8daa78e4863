"""Workers under their parent: started, started anew when they die, told to end, and gone when the parent is."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from proxy.adapters.worker_processes import LIVED_S, PAUSE_S_MAX, PAUSE_S_MIN, Pause

# Each worker says who it is and waits for a signal or its parent's end; it ends with its index.
PROGRAM = """
import os, select, signal, sys
from proxy.adapters.clock import SystemClock
from proxy.adapters.worker_processes import Workers

def work(index, alive):
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    os.write(1, b"worker %d is %d\\n" % (index, os.getpid()))
    ready, _, _ = select.select([alive, told], [], [])
    os.write(1, b"worker %d ends by %s\\n" % (index, b"parent" if alive in ready else b"signal"))
    return index

os.write(1, b"parent is %d\\n" % os.getpid())
sys.exit(Workers(2, work, SystemClock()).run())
"""


@contextmanager
def parent() -> Iterator[subprocess.Popen[str]]:
    """Run the program; nothing of it is left behind."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str], pattern: str, count: int) -> list[re.Match[str]]:
    """Read until so many lines have matched."""
    assert process.stdout is not None
    found: list[re.Match[str]] = []
    while len(found) < count:
        line = process.stdout.readline()
        assert line, (pattern, found)
        found += [match] if (match := re.search(pattern, line)) else []
    return found


def test_they_are_told_to_end_and_the_worst_exit_code_is_the_parents() -> None:
    with parent() as process:
        assert sorted(match[1] for match in lines(process, r"worker (\d) is \d+", 2)) == ["0", "1"]
        process.send_signal(signal.SIGTERM)
        lines(process, r"worker \d ends by signal", 2)
        assert process.wait(10) == 1


def test_one_that_dies_is_started_anew_under_its_index() -> None:
    with parent() as process:
        first = {match[1]: int(match[2]) for match in lines(process, r"worker (\d) is (\d+)", 2)}
        os.kill(first["1"], signal.SIGKILL)
        (again,) = lines(process, r"worker (\d) is (\d+)", 1)
        assert again[1] == "1"
        assert int(again[2]) != first["1"]
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 1


def test_they_end_with_their_parent() -> None:
    with parent() as process:
        lines(process, r"worker \d is \d+", 2)
        process.kill()
        lines(process, r"worker \d ends by parent", 2)


@pytest.mark.parametrize(("lived_s", "second_s"), [(0.0, 2 * PAUSE_S_MIN), (LIVED_S, PAUSE_S_MIN)])
def test_the_pause_doubles_while_it_keeps_dying(lived_s: float, second_s: float) -> None:
    pause = Pause()
    assert pause.after(0.0) == PAUSE_S_MIN
    assert pause.after(lived_s) == second_s
    for _ in range(10):
        longest_s = pause.after(0.0)
    assert longest_s == PAUSE_S_MAX
