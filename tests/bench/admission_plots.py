"""Plots of the protocol as SVG: KV usage over time against capacity, goodput over load, preemptions by policy.

Needs matplotlib, from the dependency group ``bench``. Equal results give equal files.
"""

from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from proxy.sim.scenario import KVGATE
from tests.bench.admission_loads import GOOD, best, stationary, stationary_rivals, stations
from tests.bench.admission_rows import Make, Plan, Read, estimate
from tests.bench.admission_runs import Results
from tests.bench.admission_saturated import BLOCKS, COMPARED, PASS_THROUGH, PREEMPTED, run

mpl.rcParams["svg.hashsalt"] = "kvgate"
mpl.rcParams["svg.fonttype"] = "none"  # text stays text
SHOWN = {KVGATE: "#0072b2", PASS_THROUGH: "#d55e00", "threshold-own:0.9": "#009e73"}  # told apart by colour-blind people too
USAGE_S = {"chat": 90.0, "reasoning": 400.0}


def write_plots(plan: Plan, results: Results, folder: Path) -> list[Path]:
    """Draw what there are results for."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [usage(plan, results, workload) for workload in USAGE_S]
    drawn += [goodput_over_load(plan, results), preemptions(plan, results)]
    names = [*(f"usage-{workload}" for workload in USAGE_S), "goodput-over-load", "preemptions"]
    written = []
    for name, one in zip(names, drawn, strict=True):
        if one is not None:
            path = folder / f"{name}.svg"
            one.savefig(path, format="svg", metadata={"Date": None})
            written.append(path)
    return written


def usage(plan: Plan, results: Results, workload: str) -> Figure | None:
    """KV usage of one replica from the cold start on; capacity is 1."""
    series: dict[str, list[Any]] = {}
    for who in SHOWN:
        measured = results.get(run(plan, "small", workload, who, plan.seeds[0]))
        if measured is None:
            return None
        series[who] = [point for point in measured["series"] if point[0] <= USAGE_S[workload]]
    drawn = Figure(figsize=(9, 3.6), layout="constrained")
    axes = drawn.subplots()
    for who, points in series.items():
        axes.plot([point[0] for point in points], [point[1] for point in points], label=who, color=SHOWN[who], linewidth=1.0)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle="--", label="capacity")
    axes.set(
        xlabel="seconds",
        ylabel="KV usage, share of the pool",
        ylim=(0.0, 1.05),
        title=f"{workload}, saturated, {BLOCKS['small'][workload]:,} blocks, seed {plan.seeds[0]}",
    )
    axes.legend(loc="lower right")
    return drawn


def goodput_over_load(plan: Plan, results: Results) -> Figure | None:
    """Good answers per second over what was offered, both in shares of capacity."""
    read = Read(results, plan.seeds)
    loads = [load for workload, load in stations(plan) if workload == "chat"]

    def rival(load: float) -> Make | None:
        make = {who: partial(stationary, plan, "chat", load, who) for who in stationary_rivals(plan, "chat")}
        name = best(read, make)
        return None if name is None else make[name]

    lines = {"kvgate": "#0072b2", PASS_THROUGH: "#d55e00", "best cap or threshold in hindsight": "#009e73"}
    drawn = Figure(figsize=(7, 4), layout="constrained")
    axes = drawn.subplots()
    for name, colour in lines.items():
        known = []
        for load in loads:
            make = partial(stationary, plan, "chat", load, name) if name in {KVGATE, PASS_THROUGH} else rival(load)
            found = None if make is None else estimate(read.values(make, GOOD))
            if found is not None:
                low, high = (found.mean if bound is None else bound for bound in (found.low, found.high))
                known.append((load, load * found.mean, load * (found.mean - low), load * (high - found.mean)))
        if not known:
            return None
        at, mean, below, above = zip(*known, strict=True)
        axes.errorbar(at, mean, yerr=[below, above], label=name, color=colour, marker="o", capsize=3)
    axes.set(
        xlabel="offered load ÷ fluid capacity", ylabel="good answers ÷ fluid capacity", title="chat, small pool", ylim=(0.0, None)
    )
    axes.legend()
    return drawn


def preemptions(plan: Plan, results: Results) -> Figure | None:
    """By policy, saturated small pools, on a scale that shows both few and many."""
    read = Read(results, plan.seeds)
    drawn = Figure(figsize=(9, 4), layout="constrained")
    axes = drawn.subplots()
    workloads = list(BLOCKS["small"])
    width = 0.8 / len(COMPARED)
    for index, who in enumerate(COMPARED):
        means = [read.mean(partial(run, plan, "small", workload, who), PREEMPTED) for workload in workloads]
        known = [value for value in means if value is not None]
        if len(known) < len(means):
            return None
        axes.bar([place + index * width for place in range(len(workloads))], known, width, label=who)
    axes.axhline(5.0, color="black", linewidth=0.8, linestyle="--", label="target")
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(workloads))], workloads)
    axes.set(ylabel="preemptions per 1,000 completed", title="saturated, small pools")
    drawn.legend(loc="outside right upper")
    return drawn
