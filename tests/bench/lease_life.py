"""What one request costs the gate from its arrival to its end, here and, in the same run, in another clone.

    python -m tests.bench.lease_life [--against DIR] [--replicas 1,16,64] [--open 64] [--rounds 3] [--lives 400] [--json]

``roomy``: pools with room for everybody, outputs of some hundred tokens. ``brief``: the same, one tenant, outputs of one to three tokens,
as in the proxy's own benchmark where engines answer at once. ``shared``: ``roomy`` with prompts that are hashed and begin with one of 20
system prompts, so that each replica is asked how warm it is. ``full``: pools as large as what is open, 500 requests waiting.

A *decision* is ``Gate.handle`` of an arrival; its *end* that of ``Finished``, with the admissions that it makes room for; a *life* is both
and the grant between them, of one request. Microseconds of this thread's CPU, p50 and p99 of all lives of a round; the table shows the
median over rounds. *upkeep* is what Ticks and scrapes take of a core. With ``--against`` the rounds of both clones alternate, each in a
process of its own, this file's load on either's ``proxy``; ratios are here over there.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.bench.decision import Case, Traffic

HERE = Path(__file__).resolve().parents[2]
WORLDS = ("roomy", "brief", "shared", "full")
KINDS = ("decision", "end", "life")
BLOCKS_EACH = 400  # of a roomy pool, for each request: four times what one comes to hold
WAITING = 500
CHILD = """
import sys
sys.path.insert(0, {clone!r})
import proxy
sys.path.insert(0, {here!r})
from tests.bench.lease_life import child
child({world!r}, {replicas}, {open}, {lives})
"""

Figures = dict[str, float]


def play(world: str, replicas: int, in_flight: int, lives: int) -> Figures:
    """One round of one world: microseconds by kind, and the share of a core that upkeep takes."""
    usable = BLOCKS_EACH * max(in_flight // replicas, 1) * (4 if world == "brief" else 1)
    brief = world == "brief"
    if world == "full":
        roomy = Traffic(Case(in_flight, replicas, lives // 4, False, usable, 0))
        roomy.run()
        usable = int(np.mean([book.peak_blocks(None, roomy.now_s) for book in roomy.gate.fleet]))
    waiting = WAITING if world == "full" else 0
    traffic = Traffic(Case(in_flight, replicas, lives, world == "shared", usable, waiting, brief))
    seconds = traffic.run()
    cost_us = traffic.cost_us
    ends = cost_us["finished"] + cost_us["finished_waiting"]
    decisions = cost_us["arrive_admitted"] + cost_us["arrive_held"]
    figures: Figures = {"lives": len(traffic.life_us)}
    for kind, values in zip(KINDS, (decisions, ends, traffic.life_us), strict=True):
        for percent in (50, 99):
            figures[f"{kind}_p{percent}"] = float(np.percentile(values, percent))
    upkeep_us = sum(sum(values) for kind, values in cost_us.items() if kind.startswith(("tick", "observed")))
    figures["upkeep_percent"] = upkeep_us / 1e4 / seconds
    return figures


def child(world: str, replicas: int, in_flight: int, lives: int) -> None:
    """A round in a process of its own: its figures as a line."""
    sys.stdout.write(json.dumps(play(world, replicas, in_flight, lives)) + "\n")


def rounds_of(world: str, replicas: int, options: argparse.Namespace) -> dict[str, list[Figures]]:
    """The rounds of one world, by clone."""
    clones = [str(HERE), *([options.against] if options.against else [])]
    found: dict[str, list[Figures]] = {clone: [] for clone in clones}
    for _ in range(options.rounds):
        for clone in clones:
            code = CHILD.format(
                clone=clone, here=str(HERE), world=world, replicas=replicas, open=options.open, lives=options.lives
            )
            ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            found[clone].append(json.loads(ran.stdout))
    return found


def row(world: str, replicas: int, options: argparse.Namespace) -> dict[str, object]:
    """Medians over the rounds: of this clone, of the other, and the first over the second."""
    found = rounds_of(world, replicas, options)
    medians = {
        clone: {name: statistics.median(one[name] for one in rounds) for name in rounds[0]} for clone, rounds in found.items()
    }
    told: dict[str, object] = {"world": world, "replicas": replicas, "open": options.open, "here": medians[str(HERE)]}
    if options.against:
        there = medians[options.against]
        told["there"] = there
        told["ratio"] = {name: value / there[name] for name, value in medians[str(HERE)].items() if there[name]}
    return told


def line(told: dict[str, object]) -> str:
    """One row for people: p50/p99 of each kind, here and there."""
    cells = [f"{told['world']!s:<6} {told['replicas']!s:>3} replicas"]
    for clone in ("here", "there"):
        figures = told.get(clone)
        if isinstance(figures, dict):
            costs = "  ".join(f"{kind} {figures[f'{kind}_p50']:5.0f}/{figures[f'{kind}_p99']:5.0f}" for kind in KINDS)
            cells.append(f"{clone}: {costs}  upkeep {figures['upkeep_percent']:4.1f} %")
    if isinstance(ratio := told.get("ratio"), dict):
        cells.append("ratio p50 " + " ".join(f"{kind} {ratio[f'{kind}_p50']:.2f}" for kind in KINDS))
    return "  |  ".join(cells)


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="DIR", help="another clone, to be measured in turns with this one")
    parser.add_argument("--replicas", default="1,16,64", help="replicas, several by commas (default %(default)s)")
    parser.add_argument("--worlds", default=",".join(WORLDS), help="which, by commas (default %(default)s)")
    parser.add_argument("--open", type=int, default=64, help="requests in flight (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each clone (default %(default)s)")
    parser.add_argument("--lives", type=int, default=400, help="requests in a round, at least (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON list instead of the table")
    options = parser.parse_args(arguments)
    rows = []
    for world in options.worlds.split(","):
        for replicas in map(int, options.replicas.split(",")):
            rows.append(row(world, replicas, options))
            if not options.json:
                sys.stdout.write(line(rows[-1]) + "\n")
                sys.stdout.flush()
    if options.json:
        sys.stdout.write(json.dumps(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
