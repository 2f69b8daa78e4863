"""Writes what was measured as one Markdown page: first every target and whether it was reached, then all tables."""

from collections.abc import Iterable

from tests.bench.admission_rows import AT_LEAST, Plan, Row, Table, estimate
from tests.bench.admission_runs import sources_digest

NOTHING = "–"
WORSE_FIRST = ("not reached", "missed on average", "not measured", "reached on average", "reached")


def number(value: float, digits: int) -> str:
    """A figure without a minus before nothing."""
    text = f"{value:,.{digits}f}"
    return text.removeprefix("-") if not float(text.replace(",", "")) else text


def figure(row: Row) -> str:
    """Mean and interval."""
    found = estimate(row.values)
    if found is None:
        return NOTHING
    unit = f" {row.unit}" if row.unit else ""
    mean = number(found.mean, row.digits) + unit
    if found.low is None or found.high is None:
        return mean
    return f"{mean} ({number(found.low, row.digits)} … {number(found.high, row.digits)})"


def target(row: Row) -> str:
    """As people write it."""
    if row.target is None:
        return ""
    sign = "≥" if row.sense == AT_LEAST else "≤"
    return f"{sign} {number(row.target, row.digits)}"


def lines_of(table: Table) -> list[str]:
    """One table."""
    head = ["", f"### {table.title}", ""]
    if table.note:
        head += [table.note, ""]
    head += ["| figure | target | mean (95 % interval) | seeds | |", "| --- | --- | --- | --- | --- |"]
    return head + [f"| {row.what} | {target(row)} | {figure(row)} | {len(row.values)} | {row.verdict} |" for row in table.rows]


def summary(tables: Iterable[Table]) -> list[str]:
    """How many rows with a target were reached, and those that were not."""
    aimed = [(table, row) for table in tables for row in table.rows if row.target is not None]
    counts = {verdict: sum(row.verdict == verdict for _, row in aimed) for verdict in reversed(WORSE_FIRST)}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    lines = ["", f"{len(aimed)} figures have a target: {told or 'none measured'}.", ""]
    missed = [(table, row) for verdict in WORSE_FIRST[:3] for table, row in aimed if row.verdict == verdict]
    if missed:
        lines += ["| figure | | target | mean (95 % interval) |", "| --- | --- | --- | --- |"]
        lines += [f"| {table.title}: {row.what} | {row.verdict} | {target(row)} | {figure(row)} |" for table, row in missed]
    return lines


def page(
    plan: Plan, sections: list[tuple[str, list[Table]]], left_out: list[str], failed: Iterable[str], plots: list[str]
) -> str:
    """The page. ``sections`` are experiments with their tables, ``plots`` paths relative to it."""
    tables = [table for _, found in sections for table in found]
    lines = [
        "# What admission reaches, in simulation",
        "",
        "Written by `make bench-admission` (`tests/bench/README.md`); not to be edited. In virtual time, defaults only, the same for all.",
        f"Seeds {', '.join(map(str, plan.seeds))}. The run is the statistical unit: 95 % bootstraps over seeds, ratios made by seed.",
        "*Reached*: the mean and its whole interval; *reached on average*: the mean alone; *missed on average*: some of the interval.",
        f"Source of `proxy/core`, `proxy/sim` and the judges: `{sources_digest()[:12]}`.",
    ]
    if plan.quick:
        lines += ["", "**A quick look: far too few requests to tell anything. It shows that the protocol works.**"]
    lines += [""] + [f"- Left out: {one}" for one in left_out] + [f"- Failed: {one}" for one in failed]
    lines += ["", "## In short", *summary(tables)]
    if plots:
        lines += ["", "## Plots", ""] + [f"![{path.rpartition('/')[2].removesuffix('.svg')}]({path})\n" for path in plots]
    for title, found in sections:
        lines += ["", f"## {title[:1].upper()}{title[1:]}"]
        for table in found:
            lines += lines_of(table)
    return "\n".join(lines).rstrip() + "\n"
