"""Plays the runs of the protocol in several processes and keeps what each came to, so that an interrupted protocol goes on where it was.

A ``Task`` is one run: what is played, on which scenario, under which policy. Its result is one line of JSON in a file named by a digest of
the task and of all source that can change it (``proxy/core``, ``proxy/sim`` and what judges here): a changed core is measured anew.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

from proxy.sim.scenario import Scenario
from tests.bench.admission_kinds import KINDS, Measured

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".kvgate" / "bench-admission"
SOURCES = ("proxy/core", "proxy/sim", "tests/bench/admission_kinds.py", "tests/bench/prefix_hits.py", "tests/bench/overload.py",
           "tests/bench/faults.py", "tests/bench/decision.py")  # fmt: skip

Say = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """One run. ``kind`` names who plays it (``admission_kinds.KINDS``); ``cost`` is about how long it takes, in any unit, for the ETA.

    ``alone`` is for what is timed: it runs after all others, one at a time.
    """

    kind: str
    scenario: Scenario
    policy: str = "kvgate"
    options: tuple[tuple[str, float | str], ...] = ()
    cost: float = field(default=1.0, repr=False)
    alone: bool = field(default=False, repr=False)

    @property
    def name(self) -> str:
        """For people."""
        at = self.scenario
        load = "saturated" if at.load is not None and at.saturated else f"load {at.load or 'default'}"
        words = " ".join(f"{value}" for _, value in self.options)
        budget = at.policy.budget
        if budget.z_min == budget.z_max:
            words += f"z={budget.z_min:g}"
        return f"{self.kind} {Path(at.workload).name} {at.kv_blocks} {load} {self.policy} {words} seed {at.seed}"


@cache
def sources_digest() -> str:
    """Of all that decides what a run comes to."""
    found = hashlib.sha256()
    for source in SOURCES:
        path = ROOT / source
        for each in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found.update(str(each.relative_to(ROOT)).encode() + each.read_bytes())
    return found.hexdigest()


def digest(task: Task) -> str:
    """What names the task's result. Of a recorded workload the file's size counts, not its place."""
    path = Path(task.scenario.workload)
    size = path.stat().st_size if path.is_file() else 0
    told = repr(task).replace(str(path), path.name) if size else repr(task)
    return hashlib.sha256(f"{sources_digest()} {size} {told}".encode()).hexdigest()[:32]


class Results:
    """What the runs came to. ``failed`` tells what went wrong with those that have no result, by digest."""

    def __init__(self, folder: Path) -> None:
        self.failed: dict[str, str] = {}
        self._folder = folder
        self._found: dict[str, Measured] = {}

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def knows(self, task: Task) -> bool:
        """Whether it has been played, now or earlier."""
        return self.get(task) is not None

    def get(self, task: Task) -> Measured | None:
        """None for what was not played or failed."""
        key = digest(task)
        if key not in self._found and self._path(key).is_file():
            self._found[key] = json.loads(self._path(key).read_text("utf-8"))
        return self._found.get(key)

    def keep(self, task: Task, measured: Measured) -> None:
        """Write the result, whole or not at all."""
        key = digest(task)
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._path(key).with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps({"task": task.name, **measured}) + "\n", "utf-8")
        part.replace(self._path(key))
        self._found[key] = measured

    def figure(self, task: Task, name: str) -> float | None:
        """One figure of a run; None where there is none."""
        measured = self.get(task)
        return None if measured is None else measured["figures"].get(name)


def play(task: Task) -> Measured:
    """Play one run in this process."""
    begun_s = time.monotonic()
    measured = KINDS[task.kind](task.scenario, task.policy, dict(task.options))
    return {**measured, "seconds": round(time.monotonic() - begun_s, 2)}


def tell(text: str) -> None:
    """Progress goes to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def run_all(tasks: Iterable[Task], results: Results, *, jobs: int, say: Say = tell) -> None:
    """Play what has no result yet. A run that fails is told and left out; the others go on."""
    wanted = list({digest(task): task for task in tasks}.values())
    fresh = [task for task in wanted if not results.knows(task)]
    say(f"{len(wanted)} runs, {len(wanted) - len(fresh)} of them played already; {jobs} at a time")
    progress = Progress(fresh, say)
    together = sorted((task for task in fresh if not task.alone), key=lambda task: -task.cost)  # long ones first: no long tail
    for batch, workers in ((together, jobs), ([task for task in fresh if task.alone], 1)):
        if batch:
            _run_batch(batch, workers, results, progress)


def _run_batch(batch: Sequence[Task], workers: int, results: Results, progress: "Progress") -> None:
    with ProcessPoolExecutor(min(workers, len(batch)), get_context("spawn")) as pool:
        # A scenario travels without the workload it may have loaded.
        futures: dict[Future[Measured], Task] = {
            pool.submit(play, replace(task, scenario=replace(task.scenario))): task for task in batch
        }
        left = set(futures)
        try:
            while left:
                done, left = wait(left, return_when=FIRST_COMPLETED)
                for future in done:
                    task, error = futures[future], future.exception()
                    if error is None:
                        results.keep(task, future.result())
                    else:
                        results.failed[digest(task)] = f"{task.name}: {type(error).__name__}: {error}"
                    progress.ended(task, None if error is None else repr(error))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class Progress:
    """Tells after each run how many there are to go and about how long that takes."""

    def __init__(self, tasks: Sequence[Task], say: Say) -> None:
        self._say = say
        self._count = len(tasks)
        self._cost = sum(task.cost for task in tasks)
        self._ended = 0
        self._cost_ended = 0.0
        self._begun_s = time.monotonic()

    def ended(self, task: Task, error: str | None) -> None:
        """One run ended."""
        self._ended += 1
        self._cost_ended += task.cost
        elapsed_s = time.monotonic() - self._begun_s
        left_s = elapsed_s * (self._cost - self._cost_ended) / self._cost_ended
        fault = "" if error is None else f"  FAILED: {error}"
        self._say(f"{self._ended}/{self._count}  {elapsed_s:.0f} s, about {left_s:.0f} s to go  {task.name}{fault}")
