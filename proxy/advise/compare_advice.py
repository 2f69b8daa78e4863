"""What a comparison says in words: whether the runs can be compared at all, one sentence, and what to try next.

What to try follows the four signals of the second run, as an operator reads them: usage high with preemptions is too much at a time; usage
high with a growing queue is too few replicas; usage low with a queue is a limit that is too timid; usage low without a queue is too
little load to tell anything.
"""

from collections.abc import Iterator

import numpy as np

from proxy.advise.compare import Comparison, Figure, Verdict
from proxy.advise.compare_draws import BLOCKS_FEW
from proxy.advise.result_file import BenchResult

LATE_S_MAX = 0.1
DURATION_RATIO_MAX = 1.1
USAGE_HIGH, USAGE_LOW = 0.9, 0.6
WAITING_SOME = 1.0
PREEMPTIONS_PER_1000_MAX = 5.0  # the gate's own target
TOLD_MAX = 3
LENGTHEN_MAX = 20


def changed_flags(before: BenchResult, after: BenchResult) -> dict[str, tuple[str | None, str | None]]:
    """What differs between the engines, by flag: (before, after), None where it was not seen."""
    return {name: pair for name, pair in _facts(before, after) if pair[0] != pair[1]}


def doubts(before: BenchResult, after: BenchResult, found: Comparison) -> Iterator[str]:
    """Why the two runs may not be comparable; each with what to do."""
    for name, old, new in (
        ("workload", before.workload.name, after.workload.name),
        ("seed", before.workload.seed, after.workload.seed),
        ("rate", before.workload.rate_per_s, after.workload.rate_per_s),
        ("concurrency", before.workload.concurrency, after.workload.concurrency),
        ("warm-up", before.warmup_s, after.warmup_s),
    ):
        if old != new:
            yield f"the {name} differs ({_shown(old)}, then {_shown(new)}): what changed may be the load; run both alike"
    if before.slo != after.slo:
        yield "the objectives differ: both runs are judged by the first one's"
    lengths = sorted((before.duration_s, after.duration_s))
    if lengths[0] <= 0 or lengths[1] / lengths[0] > DURATION_RATIO_MAX:
        yield f"one run took {lengths[0]:.0f} s and the other {lengths[1]:.0f} s: give both the same --duration"
    for which, run in (("first", before), ("second", after)):
        yield from _run_doubts(which, run)
    changed = changed_flags(before, after)
    if len(changed) > 1:
        yield f"{len(changed)} things changed at once ({', '.join(changed)}): nobody can tell which did it; change one knob at a time"
    if found.blocks.few:
        yield (
            f"the runs are only {found.blocks.count} times as long as their median answer or less; for an interval to be trusted it takes "
            f"{BLOCKS_FEW}: run longer"
        )


def _run_doubts(which: str, run: BenchResult) -> Iterator[str]:
    late = [one.sent_s - one.planned_s for one in run.measured]
    late_s = float(np.percentile(late, 99)) if late else 0.0
    if late_s > LATE_S_MAX:
        yield f"the client of the {which} run fell behind its plan (p99 {late_s:.2f} s) and latencies hold that: give it a larger machine"
    failed = sum(signals.scrapes_failed for signals in run.signals)
    if not run.signals:
        yield f"the {which} run has no engine signals: usage, waiting and preemptions are unknown"
    elif failed:
        yield f"{failed} scrapes of the {which} run failed"


def sentence(before: BenchResult, after: BenchResult, found: Comparison) -> str:
    """One sentence: better, worse or noise, and by what."""
    better, worse = found.of(Verdict.BETTER), found.of(Verdict.WORSE)
    if not before.summary.outcomes.get("completed") or not after.summary.outcomes.get("completed"):
        which = "first" if not before.summary.outcomes.get("completed") else "second"
        return f"Nothing can be compared: no request of the {which} run was completed."
    match found.verdict:
        case Verdict.BETTER:
            rest = f", although {_listed(worse)}" if worse else "; nothing that decides got worse"
            return f"Better: {_listed(better)}{rest}."
        case Verdict.WORSE:
            rest = f", although {_listed(better)}" if better else "; nothing that decides got better"
            return f"Worse: {_listed(worse)}{rest}."
        case Verdict.MIXED:
            return f"Mixed: {_listed(better)}, but {_listed(worse)}."
        case _:
            return f"Noise: no figure that decides changed beyond its 99 % interval{_resolution(found)}."


def next_step(after: BenchResult, found: Comparison) -> str:
    """What to try, by the state of the second run."""
    if found.verdict is Verdict.WORSE:
        return "go back to what the first run had, and change it the other way or another knob"
    failed = found.figure("failed_ratio").after or 0.0
    if failed > 0.01:
        return f"{failed:.0%} of the requests failed: read their errors before any figure here".replace("%", " %")
    usage, waiting = found.figure("kv_usage_ratio_mean").after, found.figure("waiting_mean").after
    preemptions = found.figure("preemptions_per_1000").after
    if usage is None or waiting is None:
        return "let the bench read the engine's /metrics: without usage, waiting and preemptions there is no telling which knob binds"
    if preemptions is not None and preemptions > PREEMPTIONS_PER_1000_MAX:
        return (
            f"{preemptions:.0f} preemptions per 1,000 requests: less at a time (a lower --max-num-seqs, or kvgate in front, which admits "
            "what fits), then more pool (--tp, an fp8 KV cache, replicas)"
        )
    if usage >= USAGE_HIGH and waiting >= WAITING_SOME:
        return f"usage {usage:.0%} with a queue: add replicas rather than push --gpu-memory-utilization".replace("%", " %")
    if usage < USAGE_LOW and waiting >= WAITING_SOME:
        return (
            f"requests wait while usage is {usage:.0%}: raise --max-num-seqs, or --max-num-batched-tokens where running stays below it"
        ).replace("%", " %")
    missed = _missed(after)
    if missed is not None:
        return missed
    if usage < USAGE_LOW:
        return (
            f"usage is {usage:.0%} and nothing waits: raise the load until one of the signals moves, and compare there".replace(
                "%", " %"
            )
        )
    if found.verdict is Verdict.NOISE:
        return f"nothing tells the two apart at this load; keep the smaller value{_longer(found)}"
    return "usage is good, preemptions are gone and p99 holds: this is the sweet spot; keep it, and leave the rest as headroom"


def _missed(after: BenchResult) -> str | None:
    """The knob for a tail that misses the objective."""
    ttft, tpot = after.summary.ttft_s.p99, after.summary.tpot_s.p99
    if after.slo.ttft_s is not None and ttft is not None and ttft > after.slo.ttft_s:
        return (
            f"TTFT p99 misses {after.slo.ttft_s:g} s: a larger --max-num-batched-tokens lets prompts through sooner; if ITL has no room, "
            "add replicas"
        )
    if after.slo.tpot_s is not None and tpot is not None and tpot > after.slo.tpot_s:
        return f"TPOT p99 misses {1000 * after.slo.tpot_s:g} ms: lower --max-num-seqs, or make steps smaller (--max-num-batched-tokens)"
    return None


def _facts(before: BenchResult, after: BenchResult) -> Iterator[tuple[str, tuple[str | None, str | None]]]:
    old, new = (dict(_seen(run)) for run in (before, after))
    for name in dict.fromkeys([*old, *new]):
        yield name, (old.get(name), new.get(name))


def _seen(run: BenchResult) -> Iterator[tuple[str, str]]:
    for index, engine in enumerate(run.engines):
        place = f"engine {index + 1} " if len(run.engines) > 1 else ""
        for name in ("version", "model", "block_size", "kv_blocks", "context_tokens_max"):
            value = getattr(engine, name)
            if value is not None:
                yield place + name, str(value)
        yield from ((place + name, value) for name, value in engine.flags.items())


def _listed(figures: list[Figure]) -> str:
    told = [_told(each) for each in figures[:TOLD_MAX]]
    more = len(figures) - TOLD_MAX
    if more > 0:
        told.append(f"{more} more")
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"


def _told(figure: Figure) -> str:
    kind, change = figure.kind, figure.change or 0.0
    went = "rose" if change > 0 else "fell"
    values = " → ".join("?" if each is None else f"{each * kind.scale:.3g}" for each in (figure.before, figure.after))
    by = "" if kind.absolute is not None else f" {abs(change) * 100:.0f} %"
    return f"{kind.title} {went}{by} ({values}{' ' + kind.unit if kind.unit else ''})"


def _resolution(found: Comparison) -> str:
    """What change of TTFT would have been seen."""
    row = found.figure("ttft_s_p90")
    if row.low is None or row.high is None:
        return ""
    return f"; a change of TTFT p90 beyond {row.low * 100:+.0f} to {row.high * 100:+.0f} % can be ruled out"


def _longer(found: Comparison) -> str:
    """How much longer a run would have to be to tell 5 % apart: the width falls with the root of the time."""
    row = found.figure("ttft_s_p90")
    if row.low is None or row.high is None or row.high - row.low <= 0.1:
        return ""
    times = ((row.high - row.low) / 0.1) ** 2
    return f", or run {min(times, LENGTHEN_MAX):.0f} times as long to tell 5 % of TTFT apart"


def _shown(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
