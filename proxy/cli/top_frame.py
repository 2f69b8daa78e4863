"""One picture of ``kvgate top``: lines of text, made of one answer of ``/admin/live``.

Everything fits the terminal: lines are cut at its width, lists at its height, the replicas in trouble and the fullest first. Names come
from outside, so nothing in them but printable characters reaches the terminal.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from textwrap import wrap

from proxy.wire.live_report import LiveReport, ReplicaNow

BAR = 22
RATE_S = 10.0
NAMES_MAX = 6  # classes and tenants in a line
LIST_SHARE = 0.5  # of the height that is left, for the replicas; decisions take the rest
LINES_MIN = 3
INDENT = 18  # of a decision's reason
WRAPPED_MAX = 3
BOLD, RED, YELLOW, GREEN, DIM = "1", "31", "33", "32", "2"
MARKS = {"error": ("✕", RED), "warning": ("▲", YELLOW), "note": ("●", DIM), "ok": ("●", GREEN)}
KINDS = {
    "admitted": ("let in", GREEN), "held": ("held", YELLOW), "shed": ("refused", RED), "rerouted": ("rerouted", YELLOW),
    "failed": ("failed", RED), "left": ("left", DIM),
}  # fmt: skip


class Ink:
    """Writes in colour, or not. Colour is never alone: every state has its word or its mark."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour

    def __call__(self, text: str, *codes: str) -> str:
        """The text in that ink."""
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self._colour and codes and text else text


def plain(text: str) -> str:
    """One line of printable characters: what else a name holds could steer the terminal."""
    return "".join(sign if sign.isprintable() else "�" for sign in text)


def cut(text: str, width: int) -> str:
    """As many characters as fit, the last of them telling that there were more."""
    text = plain(text)
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def frame(report: LiveReport, *, columns: int, lines: int, ink: Ink) -> list[str]:
    """The picture. ``lines`` below ``LINES_MIN`` for every list are taken for more."""
    top = [*_head(report, columns, ink), "", *_queue(report, columns, ink), ""]
    left = max(2 * LINES_MIN + 3, lines - len(top) - 1)
    replicas = max(LINES_MIN, min(len(report.replicas), int((left - 3) * LIST_SHARE)))
    body = [*_replicas(report, columns, replicas, ink), ""]
    return [*top, *body, *_decisions(report, columns, max(LINES_MIN, left - len(body) - 1), ink)]


def _head(report: LiveReport, columns: int, ink: Ink) -> list[str]:
    mode = report.mode.mode + (" by hand" if report.mode.said else "")
    store = "none" if report.store is None else report.store.phase
    facts = f"mode {mode}  policy {report.policy.version}  store {store}  up {seconds(report.up_s)}"
    mark, colour = MARKS.get(report.level, ("?", BOLD))
    found = [
        ink(cut(f"kvgate {report.version}  {report.proxy}", columns), BOLD),
        cut(facts, columns),
        f"{ink(mark, colour)} {ink(cut(report.headline, columns - 2), BOLD)}",
    ]
    for notice in report.notices:
        mark, colour = MARKS.get(notice.level, ("?", BOLD))
        found.append(f"  {ink(mark, colour)} {cut(notice.words, columns - 4)}")
    return found


def _queue(report: LiveReport, columns: int, ink: Ink) -> list[str]:
    queue = report.queue
    oldest = f", the oldest {seconds(queue.oldest_s)}" if queue.requests else ""
    counts = f"served {report.open_requests}  waiting {queue.requests}{oldest}"
    found = [cut(f"{counts}  let in {_rate(report, 'admitted')}/s  refused {_rate(report, 'shed')}/s", columns)]
    for title, rows, more in (("classes", queue.classes, 0), ("tenants", queue.tenants, queue.tenants_more)):
        if rows:
            shown = [f"{plain(one.name)} {one.requests} ({one.tokens} tok)" for one in rows[:NAMES_MAX]]
            rest = len(rows) - len(shown) + more
            shown += [f"and {rest} more"] if rest else []
            found.append(f"{ink(title, DIM)} {cut(', '.join(shown), columns - len(title) - 1)}")
    return found


def _replicas(report: LiveReport, columns: int, most: int, ink: Ink) -> list[str]:
    ordered = sorted(report.replicas, key=_trouble, reverse=True) if len(report.replicas) > most else report.replicas
    shown = ordered if len(ordered) <= most else ordered[: most - 1]
    width = max([7, *(len(plain(one.name)) for one in shown)])
    width = min(width, max(12, columns - BAR - 37))
    head = f"{'replica':<{width}} {'state':<11} {'KV blocks':<{BAR}} {'now':>4} {'peak':>4} {'of':>7} binds"
    found = [ink(cut(head, columns), DIM)]
    for one in shown:
        state, colour = one.phase, "" if one.phase == "serving" else RED
        start = f"{cut(one.name, width):<{width}} {ink(f'{cut(state, 11):<11}', *([colour] if colour else []))} {_bar(one)}"
        numbers = f" {_percent(one.measured_blocks, one):>4} {_percent(one.forecast_peak_blocks, one):>4} {_whole(one.capacity_blocks):>7} "
        words = one.binding if one.binds else (one.fault if one.phase != "serving" else "-")
        found.append(start + numbers + cut(words, max(4, columns - width - BAR - 32)))
    if len(shown) < len(report.replicas):
        found.append(cut(f"and {len(report.replicas) - len(shown)} more replicas; {_serving(report)}", columns))
    return found


def _serving(report: LiveReport) -> str:
    return f"{sum(one.phase == 'serving' for one in report.replicas)} of {len(report.replicas)} serve"


def _trouble(one: ReplicaNow) -> tuple[int, float]:
    level = 2 if one.phase != "serving" else int(one.binds)
    return level, (one.forecast_peak_blocks or 0) / (one.capacity_blocks or 1)


def _bar(one: ReplicaNow) -> str:
    """Measured, then what is estimated beyond it, then the forecast peak as a stroke, to the capacity."""
    if not one.capacity_blocks:
        return f"{'not known':<{BAR}}"

    def place(blocks: float | None) -> int:
        return max(0, min(BAR, round(BAR * (blocks or 0) / (one.capacity_blocks or 1))))

    measured = place(one.measured_blocks)
    estimated = place((one.estimated_blocks or 0) + (one.unplaced_blocks or 0))
    signs = list("█" * measured + "▒" * (estimated - measured) + "·" * (BAR - max(measured, estimated)))
    if one.forecast_peak_blocks is not None:
        signs[min(BAR - 1, place(one.forecast_peak_blocks))] = "│"
    return "".join(signs)


def _decisions(report: LiveReport, columns: int, most: int, ink: Ink) -> list[str]:
    found = [ink(cut("decisions, the latest first", columns), DIM)]
    latest = sorted(report.decisions, key=lambda one: one.at_s, reverse=True)[:most]
    for one in latest:
        word, colour = KINDS.get(one.kind, (one.kind, BOLD))
        at = datetime.fromtimestamp(one.at_s, UTC).strftime("%H:%M:%S")
        rest = wrap(plain(f"{one.traffic_class}/{one.tenant}: {one.words}"), columns - INDENT) or [""]
        found.append(f"{at} {ink(f'{cut(word, 8):<8}', colour)} {rest[0]}")
        found += [" " * INDENT + more for more in rest[1:WRAPPED_MAX]]
    return found[: most + 1] if latest else [*found, "none yet"]


def _rate(report: LiveReport, name: str) -> str:
    """How much a total grew per second lately."""
    recent = [one for one in report.samples if report.samples[-1].at_s - one.at_s <= RATE_S]
    passed_s = recent[-1].at_s - recent[0].at_s if recent else 0.0
    if passed_s <= 0.0:
        return "-"
    return f"{max(0, getattr(recent[-1], name) - getattr(recent[0], name)) / passed_s:.1f}"


def _percent(blocks: int | None, one: ReplicaNow) -> str:
    return "-" if blocks is None or not one.capacity_blocks else f"{blocks / one.capacity_blocks:.0%}"


def _whole(value: int | None) -> str:
    return "-" if value is None else str(value)


def seconds(value: float) -> str:
    """As 4.2 s, 95 s, 12 min, 3 h 05 min, 4 d."""
    if value < 10.0:
        return f"{value:.1f} s"
    if value < 120.0:
        return f"{value:.0f} s"
    minutes = int(value // 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes < 2880 else f"{minutes // 1440} d"


def joined(lines: Iterable[str]) -> str:
    """As one text."""
    return "\n".join(lines) + "\n"
