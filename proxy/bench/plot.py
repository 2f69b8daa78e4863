"""A sweep as a picture, where matplotlib is installed."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from proxy.advise.sweep import SweepPoint, SweetSpot


def can_plot() -> bool:
    """Whether matplotlib is there."""
    return find_spec("matplotlib") is not None


def plot_sweep(path: Path, flag: str, points: Sequence[SweepPoint], spot: SweetSpot) -> None:
    """Write a PNG or SVG, by the name's ending: throughput, p99 TTFT and TPOT, KV usage and preemptions over the flag's values."""
    import matplotlib as mpl  # noqa: PLC0415 - half a second, and not everybody has it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    ran = [(index, point) for index, point in enumerate(points) if point.fault is None]
    figure, axes = plt.subplots(2, 2, figsize=(10, 6.5), sharex=True)
    curves = (
        ("output tokens/s", [point.output_tokens_per_s for _, point in ran]),
        ("p99 TTFT, s", [point.ttft_s_p99 for _, point in ran]),
        ("p99 TPOT, s", [point.tpot_s_p99 for _, point in ran]),
        ("preemptions", [point.preemptions for _, point in ran]),
    )
    places = [index for index, _ in ran]
    for axis, (title, values) in zip(axes.flat, curves, strict=True):
        axis.plot(places, [float("nan") if value is None else value for value in values], marker="o")
        axis.set_title(title)
        axis.set_xticks(places, [point.value for _, point in ran])
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        if spot.index is not None:
            axis.axvline(spot.index, linestyle="--", color="tab:green", label="sweet spot")
    for axis in axes[1]:
        axis.set_xlabel(f"--{flag}")
    if spot.index is not None:
        axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
