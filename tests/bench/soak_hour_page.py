"""A long soak in lines for people, and as a page with a chart."""

import os
import platform
from operator import attrgetter
from pathlib import Path
from statistics import median

from tests.bench.load import Fate, percentile
from tests.bench.soak_hour_verdict import LATENCIES, NOISE_SHARE, Soaked, binned, failures, faults, slopes, thirds


def report(soaked: Soaked) -> list[str]:
    """What was met, seen and judged."""
    records, looks = soaked.met.records, soaked.looks
    cut_off, _ = failures(records)
    counts = {fate: sum(record.fate is fate for record in records) for fate in Fate}
    seconds = looks[-1].at_s if looks else 0.0
    lines = [
        f"{seconds:.0f} s at {soaked.rate_per_s:.1f} requests/s: {len(records)} requests",
        f"completed {counts[Fate.COMPLETED]}, shed {counts[Fate.SHED]}, left {counts[Fate.CANCELLED]}, cut off {sum(cut_off.values())}",
        f"malformed {sum(soaked.met.wrong.values())}; restarts {soaked.restarts}; policies {soaked.reloads_seen} of {soaked.reloads}",
    ]
    lines += [
        f"{name}: {one.value:+.2f} an hour, 95 % band {one.low:+.2f} to {one.high:+.2f}" for name, one in slopes(soaked).items()
    ]
    if soaked.quiet_before is not None and soaked.quiet_after is not None:
        before, after = soaked.quiet_before, soaked.quiet_after
        lines.append(
            f"in the quiet before and after: descriptors {before.fds} and {after.fds}, tasks {soaked.tasks_before} and "
            f"{soaked.tasks_after}, threads {before.threads} and {after.threads}, "
            f"anonymous memory {before.anonymous_mb:.1f} and {after.anonymous_mb:.1f} MB"
        )
    compared, agreed = sum(one.compared for one in looks), sum(one.agreed for one in looks)
    lines.append(f"ledger and engines under load: {agreed} of {compared} looks agree; in the quiet left over {soaked.left}")
    for name in LATENCIES:
        middle, last = thirds(soaked, name)
        if middle and last:
            bound = percentile(middle, 1.0 - NOISE_SHARE) or 0.0
            lines.append(
                f"{name}: middle third {median(middle):.3f} (95 % of its looks below {bound:.3f}), last {median(last):.3f}"
            )
    if looks:
        lines.append(
            f"most open at a look: {max(one.open_requests for one in looks)}, of the burst before {soaked.burst_clients}"
        )
        cpu = (looks[-1].process.cpu_s - looks[0].process.cpu_s) / max(1e-9, looks[-1].at_s - looks[0].at_s)
        lines.append(
            f"kvgate took {cpu:.1%} of a core; the machine's load was {median(one.machine_load for one in looks):.1f} in the middle"
        )
    lines += [f"FAULT {fault}" for fault in faults(soaked)]
    return [*lines, "verdict: " + ("FAILED" if faults(soaked) else "held")]


def write_page(soaked: Soaked, path: Path, command: str) -> None:
    """The report, the course by five minutes and a chart in ``results/``; needs matplotlib, from the dependency group ``bench``."""
    chart = path.parent / "results" / "soak.svg"
    chart.parent.mkdir(parents=True, exist_ok=True)
    _draw(soaked, chart)
    rows = [
        "| minute | anonymous, MB | descriptors | threads | tasks | TTFT p50, p99, s | whole p50, p99, s | machine's load |",
        "| --- " * 8 + "|",
    ]
    columns = (
        lambda one: one.process.anonymous_mb, lambda one: one.process.fds, lambda one: one.process.threads, lambda one: one.tasks,
        lambda one: one.ttft_p50_s, lambda one: one.ttft_p99_s, lambda one: one.e2e_p50_s, lambda one: one.e2e_p99_s,
        lambda one: one.machine_load,
    )  # fmt: skip
    series = [dict(binned(soaked.looks, value, 300.0)) for value in columns]
    for hour in series[0]:
        uss, fds, threads, tasks, *latencies, load = (one.get(hour, float("nan")) for one in series)
        ttft50, ttft99, e2e50, e2e99 = latencies
        rows.append(
            f"| {hour * 60:.1f} | {uss:.2f} | {fds:.0f} | {threads:.0f} | {tasks:.0f} | {ttft50:.3f}, {ttft99:.3f} | "
            f"{e2e50:.2f}, {e2e99:.2f} | {load:.1f} |"
        )
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    path.write_text(
        f"# An hour of soak\n\nWritten by `{command}` on {machine}. What is judged and how stands in `soak_hour_verdict.py`.\n\n"
        + "\n".join(f"- {line}" for line in report(soaked))
        + f"\n\n![memory and percentiles over time](results/{chart.name})\n\nMedians of five minutes each:\n\n"
        + "\n".join(rows)
        + "\n",
        encoding="utf-8",
    )


def _draw(soaked: Soaked, path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "kvgate"
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    drawn = Figure(figsize=(9, 6), layout="constrained")
    memory, times = drawn.subplots(2, sharex=True)
    minutes = [one.at_s / 60.0 for one in soaked.looks]
    memory.plot(minutes, [one.process.anonymous_mb for one in soaked.looks], label="anonymous", color="#0072b2", linewidth=1.0)
    memory.plot(minutes, [one.process.rss_mb for one in soaked.looks], label="RSS", color="#d55e00", linewidth=1.0)
    memory.axvline(soaked.warm_up_s / 60.0, color="black", linewidth=0.8, linestyle="--", label="end of the warm-up")
    memory.set(ylabel="MB", ylim=(0.0, None))
    memory.legend(loc="lower right")
    for name, label in (
        ("e2e_p99_s", "whole, p99"),
        ("e2e_p50_s", "whole, p50"),
        ("ttft_p99_s", "TTFT, p99"),
        ("ttft_p50_s", "TTFT, p50"),
    ):
        points = [(hour * 60.0, value) for hour, value in binned(soaked.looks, attrgetter(name))]
        times.plot([at for at, _ in points], [value for _, value in points], label=label, linewidth=1.0)
    times.set(xlabel="minutes", ylabel="seconds, median of a minute", ylim=(0.0, None))
    times.legend(loc="upper right")
    drawn.savefig(path, format="svg", metadata={"Date": None})
