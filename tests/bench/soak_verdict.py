"""What a soak must show, judged from what was seen.

1. No request failed that was neither cancelled by its client nor shed by kvgate.
2. At every comparison that kvgate recorded while nothing was being prefilled (no unplaced lease, the engine's queue empty) the ledger is
   within one block per running request of the engine's usage: |measured − ledger| ≤ running, at both ends of what it claims.
3. At every other comparison the usage lies in the ledger's interval, to the same tolerance:
   placed − running ≤ measured ≤ placed + unplaced + running.
4. There were at least ``quiet_min`` comparisons of the first kind that had something running.
5. At the end both sides are empty: no running request and no used block there, no lease and no block here.
6. kvgate's measurements are the engine's: the largest usage of the soak's own scrapes and of the comparisons' agree within
   ``PEAK_SLACK`` of the pool.
7. kvgate decided on every request: it met no internal error and is in mode ``enforce``.

The soak's own scrapes compare the same, but between two reads of the ledger milliseconds apart; they are reported, not judged.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.bench.engine import EngineState
from tests.bench.load import Fate, Record

END_S_MAX = 30.0
PEAK_SLACK = 0.1


@dataclass(frozen=True, slots=True)
class Comparison:
    """kvgate's ledger beside the engine at one of kvgate's scrapes; blocks. ``running`` is the engine's."""

    at_s: float
    measured_blocks: float
    low_blocks: float
    high_blocks: float
    running: int
    waiting: int
    prefilling_leases: int

    @property
    def quiet(self) -> bool:
        """Nothing is being prefilled: the ledger claims a number, not an interval."""
        return self.waiting == 0 and self.prefilling_leases == 0

    @property
    def excess_blocks(self) -> float:
        """How far the usage lies outside the ledger's interval; above it positive, below it negative."""
        return max(0.0, self.measured_blocks - self.high_blocks) - max(0.0, self.low_blocks - self.measured_blocks)

    @property
    def deviation_blocks(self) -> float:
        """What is judged, with its sign: the farther end of the interval when quiet, else how far the usage lies outside."""
        if not self.quiet:
            return self.excess_blocks
        return max(self.measured_blocks - self.low_blocks, self.measured_blocks - self.high_blocks, key=abs)

    @property
    def held(self) -> bool:
        """Within one block per running request."""
        return abs(self.deviation_blocks) <= self.running + 1e-6

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class OwnScrape:
    """The engine as scraped between two looks at kvgate's state of it."""

    engine: EngineState
    before: dict[str, Any]
    after: dict[str, Any]

    def comparison(self) -> Comparison:
        """The widest interval the two looks allow."""
        lows = [look["placed_blocks"] for look in (self.before, self.after)]
        highs = [look["placed_blocks"] + look["unplaced_blocks"] for look in (self.before, self.after)]
        prefilling = max(self.before["prefilling"], self.after["prefilling"])
        return Comparison(
            0.0, self.engine.used_blocks, min(lows), max(highs), self.engine.running, self.engine.waiting, prefilling
        )


@dataclass(frozen=True, slots=True)
class EndState:
    """What is left when all clients have gone."""

    engine: EngineState
    leases: int
    ledger_blocks: float

    @property
    def empty(self) -> bool:
        """Both sides hold nothing."""
        return self.engine.idle and self.leases == 0 and abs(self.ledger_blocks) < 1e-6


@dataclass(slots=True)
class Soak:
    """Everything seen. ``comparisons`` is keyed by time, since kvgate's history is read again and again."""

    start_s: float
    elapsed_s: float = 0.0
    records: list[Record] = field(default_factory=list)
    comparisons: dict[float, Comparison] = field(default_factory=dict)
    own: list[OwnScrape] = field(default_factory=list)
    end: EndState | None = None
    preemptions: int = 0
    not_deciding: str = ""


def read_comparisons(replica: dict[str, Any]) -> list[Comparison]:
    """Return the comparisons of ``/admin/replicas?history=1`` whose scrape brought a measurement."""
    names = ("at_s", "measured_blocks", "low_blocks", "high_blocks", "running", "waiting", "prefilling_leases")
    rows = [tuple(row[name] for name in names) for row in replica["history"]]
    return [Comparison(*row) for row in rows if None not in row]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Faults in words, empty when all held, with the comparisons they rest on."""

    faults: tuple[str, ...]
    quiet: tuple[Comparison, ...]
    other: tuple[Comparison, ...]
    own: tuple[Comparison, ...]

    def lines(self) -> list[str]:
        """Counts and the worst deviations."""
        return [
            _line("comparisons without a prefill", self.quiet),
            _line("comparisons during prefills", self.other),
            _line("own scrapes, not judged", self.own),
        ]


def _line(what: str, rows: Sequence[Comparison]) -> str:
    if not rows:
        return f"{what}: none"
    over, under = max(rows, key=lambda row: row.deviation_blocks), min(rows, key=lambda row: row.deviation_blocks)
    per_running = max(abs(row.deviation_blocks) / max(1, row.running) for row in rows)
    return (
        f"{what}: {len(rows)}, held {sum(row.held for row in rows)}; usage above the ledger by at most "
        f"{max(0.0, over.deviation_blocks):.1f} blocks ({over.running} running), below by {max(0.0, -under.deviation_blocks):.1f} "
        f"({under.running} running); worst per running request {per_running:.2f}"
    )


def judge(soak: Soak, *, quiet_min: int, off_share_max: float = 0.0) -> Verdict:
    """Hold a soak against the rules above, ``off_share_max`` of the comparisons of each kind excepted.

    Raises ValueError when it has not ended.
    """
    if soak.end is None:
        raise ValueError("the soak has not ended")
    rows = [row for _, row in sorted(soak.comparisons.items())]
    # An idle engine at either end agrees with an empty ledger for nothing: it must not count towards the number asked for.
    quiet = tuple(row for row in rows if row.quiet)
    other = tuple(row for row in rows if not row.quiet)
    busy = sum(row.running > 0 for row in quiet)
    own = tuple(scrape.comparison() for scrape in soak.own)
    faults = []
    failed = sum(record.fate is Fate.FAILED for record in soak.records)
    if failed:
        faults.append(f"{failed} requests failed")
    if not any(record.fate is Fate.COMPLETED for record in soak.records):
        faults.append("no request completed")
    for name, kind in (("without a prefill", quiet), ("during prefills", other)):
        broken = [row for row in kind if not row.held]
        if len(broken) > off_share_max * len(kind):
            worst = max(broken, key=lambda row: abs(row.deviation_blocks) - row.running)
            faults.append(
                f"{len(broken)} of {len(kind)} comparisons {name} are off by more than a block per request; worst {worst}"
            )
    if busy < quiet_min:
        faults.append(f"only {busy} comparisons without a prefill; {quiet_min} are needed")
    faults += _peak_faults(rows, soak.own)
    if soak.not_deciding:
        faults.append(soak.not_deciding)
    if not soak.end.empty:
        faults.append(f"not empty at the end: {soak.end}")
    return Verdict(tuple(faults), quiet, other, own)


def _peak_faults(rows: Sequence[Comparison], own: Sequence[OwnScrape]) -> list[str]:
    if not rows or not own:
        return ["nothing was compared"]
    told, seen = max(row.measured_blocks for row in rows), max(look.engine.used_blocks for look in own)
    if abs(told - seen) > PEAK_SLACK * own[0].engine.usable_blocks:
        return [f"kvgate says the engine used at most {told:.0f} blocks, the engine {seen:.0f}"]
    return []
