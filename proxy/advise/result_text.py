"""A bench result for people: what was sent, how it was answered, and the four signals of the engines meanwhile."""

import itertools

from proxy.advise.result_file import BenchResult, Signals, Slo, Spread

MILLI = 1000.0
NOTHING = "–"


def report(result: BenchResult) -> str:
    """The whole report."""
    run, summary = result.workload, result.summary
    load = f"{run.concurrency} clients" if run.concurrency is not None else _rate(run.rate_per_s)
    lines = [
        f"{run.name}, {load}, {result.duration_s:.1f} s against {result.target}",
        "outcomes          " + ", ".join(f"{count:,} {name}" for name, count in summary.outcomes.items()),
        (
            f"throughput        {_number(summary.requests_per_s, 2)} requests/s, {_number(summary.prompt_tokens_per_s)} prompt tokens/s,"
            f" {_number(summary.output_tokens_per_s)} output tokens/s"
        ),
    ]
    if result.slo != Slo():
        share = NOTHING if summary.goodput_ratio is None else f"{summary.goodput_ratio:.1%}"
        lines.append(
            f"goodput           {_number(summary.goodput_per_s, 2)} requests/s within {_slo(result.slo)}: {share} of all"
        )
    lines += ["", f"{'':<18}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}"]
    lines += [
        _row("TTFT, s", summary.ttft_s, 1.0),
        _row("TPOT, ms", summary.tpot_s, MILLI),
        _row("between chunks, ms", summary.itl_s, MILLI),
        _row("whole request, s", summary.e2e_s, 1.0),
    ]
    signals = [line for one in result.signals for line in _signals(one)]
    lines += ["", *(signals or ["no engine was watched: give its address with --engine URL"])]
    lines += [f"note: {note}" for note in result.notes]
    return "\n".join(lines) + "\n"


def most(values: tuple[float | None, ...]) -> float | None:
    """The largest that was told."""
    return max((value for value in values if value is not None), default=None)


def mean(values: tuple[float | None, ...]) -> float | None:
    """Of what was told."""
    told = [value for value in values if value is not None]
    return sum(told) / len(told) if told else None


def preemptions(result: BenchResult) -> float | None:
    """Over all engines during the run; None where no engine told. A counter that fell began anew."""
    told = [_added(one.preemptions_total) for one in result.signals]
    known = [value for value in told if value is not None]
    return sum(known) if known else None


def _added(totals: tuple[float | None, ...]) -> float | None:
    told = [value for value in totals if value is not None]
    if not told:
        return None
    return sum(after - before if after >= before else after for before, after in itertools.pairwise(told))


def _signals(one: Signals) -> list[str]:
    if not one.at_s:
        return []
    usage = (mean(one.kv_usage_ratio), most(one.kv_usage_ratio))
    shown = NOTHING if usage[0] is None or usage[1] is None else f"{usage[0]:.0%} (most {usage[1]:.0%})"
    name = one.url if one.engine == "0" else f"{one.url} engine {one.engine}"
    return [
        (
            f"{name}: KV usage {shown}, running {_number(mean(one.running), 1)}, waiting {_number(mean(one.waiting), 1)},"
            f" preemptions {_number(_added(one.preemptions_total))}"
        )
    ]


def _row(name: str, spread: Spread, scale: float) -> str:
    cells = (spread.mean, spread.p50, spread.p90, spread.p99)
    return f"{name:<18}" + "".join(f"{NOTHING if cell is None else f'{cell * scale:.3f}':>10}" for cell in cells)


def _number(value: float | None, digits: int = 0) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def _rate(rate_per_s: float | None) -> str:
    return "at its recorded times" if rate_per_s is None else f"{rate_per_s:g} requests/s"


def _slo(slo: Slo) -> str:
    told = (("TTFT", slo.ttft_s), ("TPOT", slo.tpot_s), ("whole", slo.e2e_s))
    return ", ".join(f"{name} {value:g} s" for name, value in told if value is not None)
