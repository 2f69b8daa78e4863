"""``kvgate report``: what observing has shown, and whether the fleet is ready to be enforced."""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec

from proxy.advise.readiness import Readiness, judge, percentile_s, ratio
from proxy.cli.admin_call import ADMIN_URL, AdminCallError, call
from proxy.cli.reading import base_url, scalar
from proxy.config.scalars import duration
from proxy.core.outcome import Mode
from proxy.wire.history_report import HistoryReport, Sums, added

SINCE_S = 86_400.0
NOT_READY = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "--since",
        type=scalar(duration("1m", "48h")),
        default=SINCE_S,
        metavar="TIME",
        help="how far back, up to 48h (default: 24h)",
    )
    parser.add_argument(
        "--admin", nargs="+", type=base_url, default=[ADMIN_URL], metavar="URL", help=f"admin ports of all proxies (default: {ADMIN_URL})"
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def run(arguments: argparse.Namespace) -> int:
    """Ask all proxies, add up, judge; 1 when it is not ready or somebody did not answer."""
    reports, faults = [], []
    for url in arguments.admin:
        try:
            answer = call("GET", url, "/admin/report", {}, query={"since_s": str(arguments.since)})
            reports.append(msgspec.convert(answer, HistoryReport))
        except (AdminCallError, msgspec.ValidationError) as error:
            faults.append(f"{error}" if isinstance(error, AdminCallError) else f"{url}: its report cannot be read: {error}")
    for fault in faults:
        print(f"kvgate report: {fault}", file=sys.stderr)
    if not reports:
        return NOT_READY
    modes = {mode.value: added((one.modes[mode] for one in reports if mode in one.modes), proxies=True) for mode in Mode}
    readiness = judge(modes[Mode.OBSERVE], min(one.wait_s_max for one in reports))
    if arguments.json:
        told = {
            "proxies": len(reports),
            "faults": faults,
            "known_s": max(one.known_s for one in reports),
            "modes": _figures_by_mode(modes),
        }
        print(
            json.dumps(
                told
                | {
                    "ready": readiness.ready,
                    "because": readiness.because,
                    "findings": [asdict(one) for one in readiness.findings],
                },
                indent=2,
            )
        )
    else:
        print("\n".join(_lines(reports, modes, readiness)))
    return 0 if readiness.ready and not faults else NOT_READY


def figures(sums: Sums) -> dict[str, Any]:
    """The figures of one mode; null where there is nothing to tell them from."""
    preemptions, preceded = sum(sums.preemptions.values()), sum(sums.preceded.values())
    return {
        "hours": round(sums.seconds / 3600.0, 3),
        "requests": sums.requests,
        "held": sums.held,
        "refused": sums.refused,
        "would_hold": sums.would_hold,
        "would_shed": sums.would_shed,
        "preemptions": preemptions,
        "preemptions_preceded_ratio": ratio(preceded, preemptions),
        "would_hold_needless_ratio": ratio(sums.would_hold_needless, sums.would_hold_ended),
        "would_wait_s_p50": percentile_s(sums.would_wait_s, 0.5),
        "would_wait_s_p99": percentile_s(sums.would_wait_s, 0.99),
        "queue_wait_s_p50": percentile_s(sums.queue_wait_s, 0.5),
        "queue_wait_s_p99": percentile_s(sums.queue_wait_s, 0.99),
        "token_counts_compared": sums.counted,
        "token_count_mismatches": sums.mismatched,
        "own_s_p99": percentile_s(sums.own_s, 0.99),
    }


def _figures_by_mode(modes: Mapping[str, Sums]) -> dict[str, dict[str, Any]]:
    return {mode: figures(sums) for mode, sums in modes.items() if sums.seconds}


TITLES = {
    "hours": ("time", "{:.2f} h"),
    "requests": ("requests", "{:,}"),
    "held": ("held", "{:,}"),
    "refused": ("refused", "{:,}"),
    "would_hold": ("would have been held", "{:,}"),
    "would_shed": ("would have been refused", "{:,}"),
    "preemptions": ("preemptions", "{:,}"),
    "preemptions_preceded_ratio": ("of them, after a would-be hold", "{:.0%}"),
    "would_hold_needless_ratio": ("would-be holds without a preemption", "{:.0%}"),
    "would_wait_s_p50": ("would-be wait p50", "{:.2f} s"),
    "would_wait_s_p99": ("would-be wait p99", "{:.2f} s"),
    "queue_wait_s_p50": ("wait of those held p50", "{:.2f} s"),
    "queue_wait_s_p99": ("wait of those held p99", "{:.2f} s"),
    "token_counts_compared": ("token counts compared", "{:,}"),
    "token_count_mismatches": ("of them, other than the engine's", "{:,}"),
    "own_s_p99": ("kvgate's own time p99", "{:.4f} s"),
}


def _lines(reports: list[HistoryReport], modes: Mapping[str, Sums], readiness: Readiness) -> list[str]:
    by_mode = _figures_by_mode(modes)
    hours = max(one.known_s for one in reports) / 3600.0
    modes_now = ", ".join(sorted({one.mode for one in reports}))
    lines = [
        f"{len(reports)} prox{'y' if len(reports) == 1 else 'ies'}, the last {hours:.2f} h; in force: {modes_now}",
        "",
    ]
    lines.append(f"{'':<38}" + "".join(f"{mode:>12}" for mode in by_mode))
    for name, (title, form) in TITLES.items():
        values = [one[name] for one in by_mode.values()]
        lines.append(f"{title:<38}" + "".join(f"{'–' if value is None else form.format(value):>12}" for value in values))
    lines.append("")
    marks = {True: "good", False: "NOT YET", None: "unknown"}
    lines += [f"{marks[one.good]:<8} {one.question}: {one.told}" for one in readiness.findings]
    return [*lines, "", f"ready to enforce: {'yes' if readiness.ready else 'no'}, because {readiness.because}"]
