"""Two runs as a picture, PNG or SVG: the four signals over time, and how TTFT and TPOT spread. Needs matplotlib (extra ``plot``)."""

from pathlib import Path
from typing import Any

from proxy.advise.compare_curves import over_time, preempted
from proxy.advise.result_file import BenchResult
from proxy.config.settings import SettingsError

SUFFIXES = (".png", ".svg")
COLOURS = ("#d55e00", "#0072b2")  # told apart by colour-blind people too
BINS = 120
GAUGES = (("kv_usage_ratio", "KV usage"), ("running", "running requests"), ("waiting", "waiting in the engine"))


def write_plot(before: BenchResult, after: BenchResult, path: Path) -> None:
    """Draw and write. Raises SettingsError where matplotlib is missing or the file cannot be written."""
    try:
        import matplotlib as mpl  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise SettingsError([f"--plot {path}: matplotlib is not installed; pip install 'kvgate[plot]'"]) from error
    with mpl.rc_context({"svg.hashsalt": "kvgate", "svg.fonttype": "none"}):
        drawn = Figure(figsize=(11, 6.5), layout="constrained")
        axes = drawn.subplots(2, 3).flatten()
        for index, (run, name) in enumerate(((before, "before"), (after, "after"))):
            _draw(axes, run, f"{name}: {run.label or run.target}", COLOURS[index])
        for axis, title in zip(
            axes, [*(title for _, title in GAUGES), "preemptions so far", "TTFT, share within", "TPOT, share within"], strict=True
        ):
            axis.set_title(title, fontsize=10)
            axis.grid(visible=True, alpha=0.3)
            axis.set_ylim(bottom=0)
        axes[0].set_ylim(0, 1)
        axes[0].legend(fontsize=8)
        for axis in axes[:4]:
            axis.set_xlabel("s", fontsize=9)
        axes[4].set_xlabel("s", fontsize=9)
        axes[5].set_xlabel("ms", fontsize=9)
        try:
            drawn.savefig(path, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None)
        except OSError as error:
            raise SettingsError([f"--plot {path}: cannot be written ({error.strerror or error})"]) from error


def _draw(axes: Any, run: BenchResult, label: str, colour: str) -> None:
    times = [(index + 0.5) * run.duration_s / BINS for index in range(BINS)]
    for axis, (column, _) in zip(axes, GAUGES, strict=False):
        known = [(at, value) for at, value in zip(times, over_time(run, column, BINS), strict=False) if value is not None]
        axis.plot([at for at, _ in known], [value for _, value in known], color=colour, label=label, linewidth=1.2)
    total, so_far = 0.0, []
    for each in preempted(run, BINS):
        total += each
        so_far.append(total)
    axes[3].plot(times, so_far, color=colour, linewidth=1.2)
    done = [one for one in run.measured if one.outcome == "completed"]
    for axis, values in (
        (axes[4], [one.ttft_s for one in done if one.ttft_s is not None]),
        (axes[5], [1000 * one.tpot_s for one in done if one.tpot_s is not None]),
    ):
        ordered = sorted(values)
        axis.step(ordered, [(rank + 1) / len(ordered) for rank in range(len(ordered))], color=colour, where="post", linewidth=1.2)
