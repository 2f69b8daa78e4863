"""A comparison for people: a table with intervals and bars, the four signals over time, and one sentence; and the same for programs."""

from collections.abc import Iterator
from textwrap import wrap

from proxy.advise.compare import Comparison, Figure, Verdict
from proxy.advise.compare_advice import changed_flags, doubts, next_step, sentence
from proxy.advise.compare_curves import over_time, preempted
from proxy.advise.compare_draws import DRAWS
from proxy.advise.result_file import BenchResult
from proxy.cli.simulate_table import NOTHING, bar

TEXT_WIDTH = 110
CURVE_WIDTH = 60
LEVELS = " ▁▂▃▄▅▆▇█"
CURVES = (("kv_usage_ratio", "KV usage", 100.0, " %"), ("running", "running", 1.0, ""), ("waiting", "waiting", 1.0, ""))
SIGNS = {
    Verdict.BETTER: "better", Verdict.WORSE: "WORSE", Verdict.NOISE: "noise", Verdict.CHANGED: "changed", Verdict.UNKNOWN: "?",
}  # fmt: skip


def as_dict(before: BenchResult, after: BenchResult, found: Comparison) -> dict[str, object]:
    """The comparison for a program, in seconds and shares."""
    return {
        "verdict": found.verdict.value,
        "sentence": sentence(before, after, found),
        "next": next_step(after, found),
        "doubts": list(doubts(before, after, found)),
        "changed": {name: {"before": old, "after": new} for name, (old, new) in changed_flags(before, after).items()},
        "blocks": found.blocks.count,
        "paired": found.blocks.paired,
        "figures": [
            {
                "name": each.kind.name,
                "before": each.before,
                "after": each.after,
                "change": each.change,
                "change_is": "ratio" if each.kind.absolute is None else "difference",
                "low": each.low,
                "high": each.high,
                "verdict": each.verdict.value,
                "decides": each.kind.decides,
            }
            for each in found.figures
        ],
    }


def text(before: BenchResult, after: BenchResult, found: Comparison) -> str:
    """The comparison for people."""
    lines = [*_heads(before, after), "", *_table(found), ""]
    curves = list(_curves(before, after))
    if curves:
        lines += ["Over time, before above after:", *curves, ""]
    told = list(doubts(before, after, found))
    if told:
        lines += [
            "Mind:",
            *(line for each in told for line in wrap(each, TEXT_WIDTH, initial_indent="  - ", subsequent_indent="    ")),
            "",
        ]
    lines += wrap(sentence(before, after, found), TEXT_WIDTH)
    lines += wrap(f"Next: {next_step(after, found)}.", TEXT_WIDTH)
    return "\n".join(lines)


def _heads(before: BenchResult, after: BenchResult) -> Iterator[str]:
    for name, run in (("before", before), ("after", after)):
        load = run.workload
        pace = f"{load.rate_per_s:g} requests/s" if load.rate_per_s is not None else f"{load.concurrency} at a time"
        label = f" ({run.label})" if run.label else ""
        size = f"{run.duration_s:.0f} s, {len(run.measured):,} requests"
        yield f"{name:<7} {run.target}{label}: {load.name}, seed {load.seed}, {pace}, {size}"
    for flag, (old, new) in changed_flags(before, after).items():
        yield f"changed {flag}: {old or 'not seen'} → {new or 'not seen'}"


def _table(found: Comparison) -> Iterator[str]:
    yield f"{'':<22} {'before':>10} {'after':>10}   {'':<25} {'change':>8}  {'99 % interval':<19} "
    for each in found.figures:
        if each.before is None and each.after is None:
            continue
        most = max(each.before or 0.0, each.after or 0.0) or 1.0
        bars = f"{bar((each.before or 0.0) / most)} {bar((each.after or 0.0) / most)}"
        change = NOTHING if each.change is None else _change(each, each.change)
        bounds = "" if each.low is None or each.high is None else f"{_change(each, each.low)} to {_change(each, each.high)}"
        yield (
            f"{each.kind.title:<22} {_value(each, each.before):>10} {_value(each, each.after):>10}   {bars} {change:>8}  {bounds:<19} "
            f"{SIGNS[each.verdict]}"
        )
    how = "the same requests in both" if found.blocks.paired else "each run by itself"
    yield f"({found.blocks.count} blocks of {found.blocks.block_s:.1f} s, drawn {DRAWS:,} times, {how})"


def _value(figure: Figure, value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value * figure.kind.scale:.4g}{' ' + figure.kind.unit if figure.kind.unit else ''}"


def _change(figure: Figure, change: float) -> str:
    if figure.kind.absolute is None:
        return f"{100 * change:+.1f} %"
    return f"{change * figure.kind.scale:+.2g}{' pt' if figure.kind.unit == '%' else ''}"  # points of a per cent


def _curves(before: BenchResult, after: BenchResult) -> Iterator[str]:
    """Lines of eighths, one for each run, on one scale."""
    for column, title, scale, unit in CURVES:
        pair = [over_time(run, column, CURVE_WIDTH) for run in (before, after)]
        known = [value for curve in pair for value in curve if value is not None]
        if not known:
            continue
        most = 1.0 if column == "kv_usage_ratio" else max(known) or 1.0
        for index, curve in enumerate(pair):
            marks = "".join(" " if value is None else LEVELS[1 + round(min(1.0, value / most) * 7)] for value in curve)
            peak = max((value for value in curve if value is not None), default=None)
            told = NOTHING if peak is None else f"{peak * scale:.3g}{unit}"
            yield f"  {title if not index else '':<10} |{marks}| most {told}"
    counts = [preempted(run, CURVE_WIDTH) for run in (before, after)]
    top = max(*(max(curve) for curve in counts), 1.0)
    for index, (grown, run) in enumerate(zip(counts, (before, after), strict=True)):
        if run.signals:
            marks = "".join(LEVELS[0 if value <= 0 else 1 + round(value / top * 7)] for value in grown)
            yield f"  {'preempted' if not index else '':<10} |{marks}| in all {sum(grown):.0f}"
