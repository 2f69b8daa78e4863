"""The evidence for admission: plays the whole protocol in virtual time and writes tests/bench/RESULTS.md with tables and plots.

    python -m tests.bench.admission                                  everything, five seeds: about an hour on two cores
    python -m tests.bench.admission --only saturated --seeds 2       one experiment
    python -m tests.bench.admission --quick                          a minute or two: shows that it works, not what it reaches

Every run is kept in .kvgate/bench-admission, so a protocol that was interrupted goes on; after a change of the core all is played anew.
Only the whole protocol is written to tests/bench; a part of it, or a quick look, goes to .kvgate/bench-admission (or where --out says).
Recorded workloads are played where the environment variable KVGATE_TEST_DATA names their folder.
"""

import argparse
import os
import sys
from pathlib import Path

from tests.bench import admission_edges, admission_loads, admission_saturated
from tests.bench.admission_report import page
from tests.bench.admission_rows import Plan
from tests.bench.admission_runs import CACHE, ROOT, Results, run_all, tell

EXPERIMENTS = {
    one.name: one for one in (*admission_saturated.EXPERIMENTS, *admission_loads.EXPERIMENTS, *admission_edges.EXPERIMENTS)
}
DATA_VARIABLE = "KVGATE_TEST_DATA"
LEFT_OUT = f"ServeGen's tenants and Mooncake's prompts: {DATA_VARIABLE} names no folder of recorded workloads"


def parse(words: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.admission", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS, metavar="EXPERIMENT", help="(all; --list names them)")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 1 to N (5)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="runs at a time (one per CPU)")
    parser.add_argument("--quick", action="store_true", help="a fraction of the requests, one seed unless --seeds says more")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where RESULTS.md and results/ go")
    parser.add_argument(
        "--cache", type=Path, default=CACHE, metavar="FOLDER", help="where runs are kept (.kvgate/bench-admission)"
    )
    parser.add_argument("--no-plots", action="store_true", help="tables only; needs no matplotlib")
    parser.add_argument("--list", action="store_true", help="name the experiments and how many runs they are, and end")
    options = parser.parse_args(words)
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs: at least 1")
    return options


def main(words: list[str]) -> int:
    """Play, then write. Returns 1 when a run failed."""
    options = parse(words)
    seeds = 1 if options.quick and "--seeds" not in words else options.seeds
    plan = Plan(tuple(range(1, seeds + 1)), options.quick, os.environ.get(DATA_VARIABLE))
    chosen = [EXPERIMENTS[name] for name in options.only or EXPERIMENTS]
    if options.list:
        for one in chosen:
            sys.stdout.write(f"{one.name:12} {len(one.tasks(plan)):5} runs  {one.about}\n")
        return 0
    plots: list[str] = []
    if not options.no_plots:
        from tests.bench.admission_plots import write_plots  # missing matplotlib shows before an hour of work

    results = Results(options.cache)
    run_all([task for one in chosen for task in one.tasks(plan)], results, jobs=options.jobs)
    whole = not options.only and not options.quick
    out = options.out or (ROOT / "tests" / "bench" if whole else options.cache)
    if not options.no_plots:
        plots = [str(path.relative_to(out)) for path in write_plots(plan, results, out / "results")]
    sections = [(one.about, one.tables(plan, results)) for one in chosen]
    left_out = [] if plan.data else [LEFT_OUT]
    out.mkdir(parents=True, exist_ok=True)
    report = out / "RESULTS.md"
    report.write_text(page(plan, sections, left_out, results.failed.values(), plots), "utf-8")
    tell(f"{report}" + (f"; {len(results.failed)} runs failed" if results.failed else ""))
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
