"""From what a run saw to figures, a table, one sentence and JSON.

The sentence says what the figures say, also where kvgate did not help: differences below ``EQUAL_RATIO`` are called equal.
"""

from dataclasses import asdict, dataclass

from proxy.bench.load import Tally
from proxy.sim.percentile import percentile

EQUAL_RATIO = 0.02  # two runs of the same differ by about this much on a shared machine
NOTHING = "–"
BUSY_LOAD_PER_CPU = 1.5  # the demo alone stays below one of two CPUs


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. Times from the client's side, the queue included; None where there was nothing to measure."""

    completed: int
    failed: int
    shed: int
    preemptions: int
    recomputed_tokens: int
    tokens_per_s: float | None
    ttft_s_p50: float | None
    ttft_s_p99: float | None
    tpot_ms_p99: float | None
    elapsed_s: float


def figures(tally: Tally, *, preemptions: int, recomputed_tokens: int) -> Figures:
    """What the clients saw, with what the replicas counted."""
    elapsed_s = tally.ended_s - tally.started_s
    completed = [result for result in tally.results if result.outcome == "completed"]
    ttft_s = [result.ttft_s for result in completed if result.ttft_s is not None]
    tpot_p99_s = percentile([result.tpot_s for result in completed if result.tpot_s is not None], 0.99)
    return Figures(
        completed=len(completed),
        failed=tally.count("failed"),
        shed=tally.count("shed"),
        preemptions=preemptions,
        recomputed_tokens=recomputed_tokens,
        tokens_per_s=sum(result.output_tokens for result in completed) / elapsed_s if elapsed_s > 0 else None,
        ttft_s_p50=percentile(ttft_s, 0.5),
        ttft_s_p99=percentile(ttft_s, 0.99),
        tpot_ms_p99=None if tpot_p99_s is None else tpot_p99_s * 1000,
        elapsed_s=elapsed_s,
    )


def as_dict(run: Figures) -> dict[str, float | None]:
    """The run as ``--json`` shows it, rounded to what the measurement can tell."""
    shown = {key: value for key, value in asdict(run).items() if key != "recomputed_tokens"}
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in shown.items()}


def ratio(before: float | None, after: float | None) -> str:
    """``after`` ÷ ``before`` for people."""
    if before is None or after is None or before <= 0:
        return NOTHING
    return f"×{after / before:.2f}"


def table(direct: Figures, kvgate: Figures) -> str:
    """Both runs side by side, with the ratio."""
    rows = [("", "without", "with kvgate", "ratio")]
    for label, name, form in (
        ("completed", "completed", "{:,}"),
        ("shed (told to come back)", "shed", "{:,}"),
        ("failed", "failed", "{:,}"),
        ("preemptions", "preemptions", "{:,}"),
        ("recomputed tokens", "recomputed_tokens", "{:,}"),
        ("TTFT p50, queue included", "ttft_s_p50", "{:.2f} s"),
        ("TTFT p99, queue included", "ttft_s_p99", "{:.2f} s"),
        ("TPOT p99", "tpot_ms_p99", "{:.1f} ms"),
        ("output tokens/s", "tokens_per_s", "{:,.0f}"),
        ("elapsed", "elapsed_s", "{:.1f} s"),
    ):
        before, after = getattr(direct, name), getattr(kvgate, name)
        shown = [NOTHING if value is None else form.format(value) for value in (before, after)]
        rows.append((label, shown[0], shown[1], ratio(before, after)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    return "\n".join([lines[0], "─" * len(lines[0]), *lines[1:]])


def sentence(direct: Figures, kvgate: Figures) -> str:
    """One sentence that reads the table."""
    if not direct.completed or not kvgate.completed:
        where = "either run" if not direct.completed and not kvgate.completed else "the run " + (
            "without kvgate" if not direct.completed else "with kvgate"
        )  # fmt: skip
        return f"Nothing can be compared: no request of {where} was completed."
    clauses = [_preemptions(direct, kvgate), _pace(direct, kvgate), _first_token(direct, kvgate)]
    clauses += [_turned_away(direct, kvgate)]
    return "; ".join(clause for clause in clauses if clause) + "."


def busy_warning(load: float, cpus: int) -> str | None:
    """A sentence when the machine's load average says that other work took CPU from the runs; else None."""
    if load <= BUSY_LOAD_PER_CPU * cpus:
        return None
    return (
        f"this machine is busy (load {load:.1f} on {cpus} CPUs): replicas, kvgate and clients waited for a CPU, and the times include "
        "it; run again when it is quiet"
    )


def _times(count: int) -> str:
    return "never" if count == 0 else "once" if count == 1 else f"{count:,} times"


def _preemptions(direct: Figures, kvgate: Figures) -> str:
    before, after = direct.preemptions, kvgate.preemptions
    if before == after == 0:
        return "No replica preempted anything in either run, so this load left kvgate nothing to prevent"
    counts = f"replicas preempted {_times(after)} instead of {_times(before)}"
    tokens = f"computed {kvgate.recomputed_tokens:,} instead of {direct.recomputed_tokens:,} tokens a second time"
    if after >= before:
        return f"kvgate prevented no preemption here: {counts} and {tokens}"
    return f"With kvgate the {counts} and {tokens}"


def _change(before: float, after: float, more: str, less: str) -> str | None:
    """``12 % more``, or None for as good as equal."""
    if before <= 0 or abs(after / before - 1) < EQUAL_RATIO:
        return None
    return f"{abs(after / before - 1):.0%} ".replace("%", " %") + (more if after > before else less)


def _pace(direct: Figures, kvgate: Figures) -> str:
    words = []
    if direct.tpot_ms_p99 is not None and kvgate.tpot_ms_p99 is not None:
        change = _change(direct.tpot_ms_p99, kvgate.tpot_ms_p99, "more", "less")
        took = f"took {change} time a token" if change else "took the same time a token"
        words.append(f"the slowest hundredth of the answers {took} ({direct.tpot_ms_p99:.1f} → {kvgate.tpot_ms_p99:.1f} ms)")
    if direct.tokens_per_s is not None and kvgate.tokens_per_s is not None:
        change = _change(direct.tokens_per_s, kvgate.tokens_per_s, "more", "fewer")
        words.append(f"the replicas made {change} tokens a second" if change else "the replicas made as many tokens a second")
    return ", and ".join(words)


def _first_token(direct: Figures, kvgate: Figures) -> str:
    before, after = (direct.ttft_s_p50, direct.ttft_s_p99), (kvgate.ttft_s_p50, kvgate.ttft_s_p99)
    if before[0] is None or before[1] is None or after[0] is None or after[1] is None:
        return ""
    where = (
        ", since requests now wait before they start,"
        if before[0] < after[0] and direct.preemptions > 2 * kvgate.preemptions
        else ""
    )
    return (
        f"the first token came after {after[0]:.2f} s instead of {before[0]:.2f} s at the median{where} "
        f"and after {after[1]:.2f} s instead of {before[1]:.2f} s at the 99th percentile"
    )


def _turned_away(direct: Figures, kvgate: Figures) -> str:
    words = []
    if kvgate.shed:
        words.append(
            f"kvgate told {kvgate.shed:,} of {kvgate.completed + kvgate.failed + kvgate.shed:,} requests to come back later"
        )
    if direct.failed or kvgate.failed:
        words.append(f"{direct.failed:,} requests failed without kvgate and {kvgate.failed:,} with it")
    return ", and ".join(words)
