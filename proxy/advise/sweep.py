"""One knob through its values: the figures of each run, where the sweet spot lies, and why.

The sweet spot is not the limit. Among the runs whose p99 keeps the SLO and whose engine preempts next to nothing, it is the one with most
output tokens a second; of runs as good as that within ``EQUAL_RATIO``, the one with the smallest p99 TTFT: the knob's next value then
buys nothing but latency. Where no run keeps both, there is none, and what comes nearest is told.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.advise.result_file import BenchResult, Slo
from proxy.advise.result_text import most, preemptions

EQUAL_RATIO = 0.02  # two runs of the same differ by about this much
PREEMPTIONS_PER_REQUEST_MAX = 0.01
BAR = 30
NOTHING = "–"


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One value and what a run with it came to; None is not measured. ``fault``: it could not be run, and why."""

    value: str
    output_tokens_per_s: float | None = None
    goodput_ratio: float | None = None
    ttft_s_p99: float | None = None
    tpot_s_p99: float | None = None
    kv_usage_ratio_most: float | None = None
    preemptions: float | None = None
    completed: int = 0
    fault: str | None = None

    @classmethod
    def of(cls, value: str, result: BenchResult) -> "SweepPoint":
        """The figures of a result."""
        summary = result.summary
        usages = [usage for one in result.signals if (usage := most(one.kv_usage_ratio)) is not None]
        return cls(
            value,
            summary.output_tokens_per_s,
            summary.goodput_ratio,
            summary.ttft_s.p99,
            summary.tpot_s.p99,
            max(usages, default=None),
            preemptions(result),
            summary.outcomes.get("completed", 0),
        )

    @property
    def preempts(self) -> bool:
        """More than next to nothing."""
        return self.preemptions is not None and self.preemptions > PREEMPTIONS_PER_REQUEST_MAX * self.completed

    def misses(self, slo: Slo) -> list[str]:
        """Which objectives its p99 does not keep."""
        told = (("TTFT", self.ttft_s_p99, slo.ttft_s), ("TPOT", self.tpot_s_p99, slo.tpot_s))
        return [name for name, value, limit in told if limit is not None and value is not None and value > limit]


@dataclass(frozen=True, slots=True)
class SweetSpot:
    """``index`` of the point; None: none is good. ``reason`` is a sentence."""

    index: int | None
    reason: str


def sweet_spot(points: Sequence[SweepPoint], slo: Slo) -> SweetSpot:
    """Choose."""
    ran = [(index, point.output_tokens_per_s) for index, point in enumerate(points) if point.output_tokens_per_s]
    rates = {index: rate for index, rate in ran if rate is not None}
    if not rates:
        return SweetSpot(None, "no value could be run")
    good = [index for index in rates if not points[index].preempts and not points[index].misses(slo)]
    if not good:
        nearest = min(rates, key=lambda index: (len(points[index].misses(slo)), points[index].preempts, -rates[index]))
        point = points[nearest]
        faults = [f"p99 {name} is beyond the SLO" for name in point.misses(slo)] + ["the engine preempts"] * point.preempts
        return SweetSpot(
            None, f"no value is good; {point.value} comes nearest ({', '.join(faults)}): less load, or more replicas"
        )
    best = max(rates[index] for index in good)
    equal = [index for index in good if rates[index] >= best * (1.0 - EQUAL_RATIO)]
    index = min(equal, key=lambda each: (points[each].ttft_s_p99 or 0.0, each))
    beyond = [point.value for place, point in enumerate(points) if place not in good and point.fault is None]
    why = "most output tokens a second within the SLO and without preemptions"
    if len(equal) > 1:
        why = f"as many tokens a second as the best, within {EQUAL_RATIO:.0%}, and the smallest p99 TTFT of these"
    return SweetSpot(index, why + (f"; preempting, or beyond the SLO: {', '.join(beyond)}" if beyond else ""))


def chart(flag: str, points: Sequence[SweepPoint], spot: SweetSpot) -> str:
    """Table and curves for a terminal, the sweet spot marked."""
    rows: list[tuple[str, ...]] = [(f"--{flag}", "output tok/s", "TTFT p99", "TPOT p99", "goodput", "KV most", "preempted", "")]
    top = max((point.output_tokens_per_s or 0.0 for point in points), default=0.0)
    for index, point in enumerate(points):
        mark = "  ← sweet spot" if index == spot.index else ""
        if point.fault is not None:
            rows.append((point.value, *[NOTHING] * 6, f"could not be run: {point.fault.splitlines()[0]}"))
            continue
        length = round(BAR * (point.output_tokens_per_s or 0.0) / top) if top else 0
        rows.append(
            (
                point.value, _shown(point.output_tokens_per_s, "{:,.0f}"), _shown(point.ttft_s_p99, "{:.2f} s"),
                _shown(point.tpot_s_p99 and 1000 * point.tpot_s_p99, "{:.1f} ms"), _shown(point.goodput_ratio, "{:.0%}"),
                _shown(point.kv_usage_ratio_most, "{:.0%}"), _shown(point.preemptions, "{:,.0f}"), "█" * length + mark,
            )
        )  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    lines = [
        "  ".join([*(cell.rjust(width) for cell, width in zip(row[:7], widths, strict=True)), row[7]]).rstrip() for row in rows
    ]
    return "\n".join(
        [*lines, "", f"{'sweet spot: ' + points[spot.index].value + ': ' if spot.index is not None else ''}{spot.reason}"]
    )


def _shown(value: float | None, form: str) -> str:
    return NOTHING if value is None else form.format(value)
