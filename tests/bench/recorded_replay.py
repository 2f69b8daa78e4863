"""A recorded run on real HTTP against its replays: who was refused, who had to wait and for how long.

Makes a recording (``recorded_run``) and plays it in the simulator ``--plays`` times. In the first play everybody comes as recorded, in
each other one so much later than the scrapes as ``LATER_S`` says: a moment that decides nothing by itself. What they differ by is what
a moment more or less in any real run would change too, and so by how much a recording can differ from itself.

``python -m tests.bench.recorded_replay --rate 6 --seconds 120``; with ``--before 60`` the recording begins in the middle of the load;
``--virtual`` records in virtual time, where no machine disturbs; ``--file R.jsonl`` takes a recording that is there.
"""

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

from proxy.cli.simulate import _recorded as engines_recorded
from proxy.sim.figures import figures_of
from proxy.sim.replay import recorded_figures, replayed_figures
from proxy.sim.scenario import KVGATE, Scenario
from proxy.sim.sim_request import SimRequest
from proxy.sim.world import Source, World
from tests.bench.recorded_run import Run, record, record_virtually

LATER_S = 0.0005
BOUNDS = {"shed": 0.05, "held": 0.05, "queue_wait_s_p50": 0.10, "queue_wait_s_p99": 0.10}
Figured = dict[str, float]


class Later:
    """The same requests, all so much later."""

    def __init__(self, source: Source, by_s: float) -> None:
        self._source, self._by_s = source, by_s

    def next_request(self, now_s: float) -> SimRequest | None:
        request = self._source.next_request(now_s)
        return None if request is None else replace(request, arrival_s=request.arrival_s + self._by_s)

    def follow_up(self, request: SimRequest, now_s: float) -> SimRequest | None:
        return self._source.follow_up(request, now_s)


def replays(path: Path, plays: int, network_s: float | None = None) -> tuple[Figured, list[Figured]]:
    """What was, and what each replay came to. ``network_s`` is one way to the engine, None: as the simulator has it."""
    scenario = Scenario(workload=str(path), **engines_recorded(str(path)))
    assert scenario.replay is not None
    settings = scenario.settings() if network_s is None else replace(scenario.settings(), network_s=network_s)
    was = recorded_figures(scenario.replay)
    found = []
    for play in range(plays):
        world = World(settings, scenario.admission(KVGATE), Later(scenario.clients(), play * LATER_S)).run()
        figures = replayed_figures(world, figures_of(world, scenario.targets), scenario.replay)
        found.append({"shed": float(figures.shed or 0), **figures.extra})
    return {"offered": float(was.offered or 0), "shed": float(was.shed or 0), **was.extra}, found


def off_by(was: float, found: float) -> float:
    """The difference as a share of what was."""
    return abs(found - was) / max(was, 1e-9)


def told(was: Figured, found: list[Figured]) -> bool:
    """Print a table; whether the median of the replays is within bounds."""
    sys.stdout.write(f"{was['offered']:.0f} requests\n{'':18}")
    sys.stdout.write("".join(f"{word:>10}" for word in ("recorded", "replayed", "off", "median", "off", "least", "most")) + "\n")
    reached = True
    for name, bound in BOUNDS.items():
        values = [one.get(name, 0.0) for one in found]
        middle, here = median(values), was.get(name, 0.0)
        off = off_by(here, middle)
        reached = reached and off <= bound
        shares = f"{values[0]:10.2f}{off_by(here, values[0]):10.1%}{middle:10.2f}{off:10.1%}"
        mark = "" if off <= bound else f"  beyond {bound:.0%}"
        sys.stdout.write(f"{name:18}{here:10.2f}{shares}{min(values):10.2f}{max(values):10.2f}{mark}\n")
    return reached


def main(words: list[str]) -> int:
    """Print a table; 1 when the median of the replays is out of bounds."""
    usual = Run()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default=usual.workload)
    parser.add_argument("--rate", type=float, default=usual.rate)
    parser.add_argument("--seconds", type=int, default=usual.seconds)
    parser.add_argument("--before", type=int, default=0, help="seconds of load before the recording begins (default: 0)")
    parser.add_argument("--kv-blocks", type=int, default=usual.kv_blocks)
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--virtual", action="store_true", help="record in virtual time")
    parser.add_argument("--plays", type=int, default=5)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--keep", type=Path, help="where to keep the recording")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(words)
    run = Run(options.workload, options.rate, options.seconds, options.before, options.kv_blocks, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or (record_virtually if options.virtual else record)(Path(folder), run)
        if options.keep is not None:
            shutil.copy(path, options.keep)
        was, found = replays(path, options.plays, 0.0 if options.virtual else None)
    reached = told(was, found)
    if options.json:
        options.json.write_text(json.dumps({"recorded": was, "replayed": found}, indent=1), encoding="utf-8")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
