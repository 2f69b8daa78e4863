"""What a long soak must show.

1. *Memory*: after the warm-up the process's own memory (anonymous) grows by less than ``MB_PER_HOUR_MAX``: Theil-Sen over the medians of
   ``BIN_S``. Pages of libraries are not its own: whether they count as private says what else runs on the machine.
2. *Descriptors and tasks*: their slopes after the warm-up have 0 in their 95 % band, or below it; and in the quiet at the end there are as
   many as in the quiet before, ``FDS_SPARE`` and ``TASKS_SPARE`` excepted.
3. *Ledger*: in a quiet second at the end all of kvgate and the engines is at 0, no fault inside was counted, and all replicas serve. Under
   load the comparisons that agree to a block per running request are told, not judged: they lie between two looks.
4. *Percentiles*: of TTFT and of the whole time, the median over the bins of the last third is not above all but ``NOISE_SHARE`` of the
   bins of the middle third. The machine's load stands beside them: it moves them, and nothing else here.
5. *Requests*: none failed but those that a restart cut off amid an answer; what is malformed got the status that it must get; every good
   policy was taken up.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.bench.load import Fate, Record, percentile
from tests.bench.soak_hour_load import Met
from tests.bench.soak_hour_look import Look, Process
from tests.bench.theil_sen import Slope, theil_sen

MB_PER_HOUR_MAX = 1.0
BIN_S = 60.0
FDS_SPARE = 4  # a scrape's or a probe's connection that is just open
TASKS_SPARE = 4
NOISE_SHARE = 0.05
HOUR_S = 3600.0
CUT_OFF = ("cut_off", "not a whole answer", "connection lost", "ended early")
LATENCIES = ("ttft_p50_s", "ttft_p99_s", "e2e_p50_s", "e2e_p99_s")


@dataclass(slots=True)
class Soaked:
    """Everything seen. The two quiets are of a kvgate without load, before and after."""

    warm_up_s: float
    burst_clients: int = 0  # at once, before the load
    looks: list[Look] = field(default_factory=list)
    met: Met = field(default_factory=Met)
    rate_per_s: float = 0.0
    restarts: int = 0
    reloads: int = 0  # good policies written
    reloads_seen: int = 0
    quiet_before: Process | None = None
    quiet_after: Process | None = None
    tasks_before: int = 0
    tasks_after: int = 0
    phases: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, float] = field(default_factory=dict)
    not_deciding: str = ""

    @property
    def steady(self) -> list[Look]:
        """Those after the warm-up."""
        return [one for one in self.looks if one.at_s >= self.warm_up_s]


def binned(looks: Sequence[Look], value: Callable[[Look], float | None], bin_s: float = BIN_S) -> list[tuple[float, float]]:
    """Medians over bins of time: (middle of the bin in hours, value). Bins without a value are left out."""
    bins: dict[int, list[float]] = {}
    for one in looks:
        if (got := value(one)) is not None:
            bins.setdefault(int(one.at_s / bin_s), []).append(got)
    return [((index + 0.5) * bin_s / HOUR_S, median(values)) for index, values in sorted(bins.items())]


FIGURES: dict[str, Callable[[Look], float]] = {
    "anonymous, MB": lambda one: one.process.anonymous_mb,
    "USS, MB": lambda one: one.process.uss_mb,
    "PSS, MB": lambda one: one.process.pss_mb,
    "RSS, MB": lambda one: one.process.rss_mb,
    "file descriptors": lambda one: one.process.fds,
    "threads": lambda one: one.process.threads,
    "tasks": lambda one: one.tasks,
}


def slopes(soaked: Soaked) -> dict[str, Slope]:
    """Per hour, after the warm-up; nothing where there are too few looks."""
    bin_s = min(BIN_S, max((soaked.looks[-1].at_s - soaked.warm_up_s) / 10.0, 1.0)) if soaked.looks else BIN_S
    points = {name: binned(soaked.steady, value, bin_s) for name, value in FIGURES.items()}
    return {name: theil_sen(some) for name, some in points.items() if len(some) > 1}


def failures(records: Sequence[Record]) -> tuple[Counter[str], Counter[str]]:
    """Errors of what failed: cut off amid an answer, and all others."""
    cut_off: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for record in records:
        if record.fate is Fate.FAILED:
            amid = record.status == 200 and any(word in record.error for word in CUT_OFF)
            (cut_off if amid else others)[record.error[:160]] += 1
    return cut_off, others


def thirds(soaked: Soaked, name: str) -> tuple[list[float], list[float]]:
    """The middle and the last third's values of a percentile, by look."""
    end_s = soaked.looks[-1].at_s if soaked.looks else 0.0
    parts = ((end_s / 3.0, 2.0 * end_s / 3.0), (2.0 * end_s / 3.0, end_s + 1.0))
    middle, last = (
        [value for one in soaked.looks if low <= one.at_s < high and (value := getattr(one, name)) is not None]
        for low, high in parts
    )
    return middle, last


def faults(soaked: Soaked) -> list[str]:
    """Why it does not hold; empty where it does."""
    found = _growth(soaked) + _quiet(soaked) + _percentiles(soaked)
    _, others = failures(soaked.met.records)
    found += [f"failed {count} × {error}" for error, count in others.items()]
    found += [f"malformed, {count} × {what}" for what, count in soaked.met.surprises.items()]
    if not any(record.fate is Fate.COMPLETED for record in soaked.met.records):
        found.append("no request completed")
    if soaked.reloads_seen != soaked.reloads:
        found.append(f"{soaked.reloads_seen} good policies were taken up of {soaked.reloads}")
    if soaked.not_deciding:
        found.append(soaked.not_deciding)
    return found


def _growth(soaked: Soaked) -> list[str]:
    found, grown = [], slopes(soaked)
    if not grown:
        return ["there are too few looks after the warm-up"]
    if grown["anonymous, MB"].value >= MB_PER_HOUR_MAX:
        found.append(f"memory grows by {grown['anonymous, MB'].value:.2f} MB an hour")
    rising = [name for name in ("file descriptors", "threads", "tasks") if grown[name].low > 0.0]
    return found + [f"{name} grow by {grown[name].value:.1f} an hour" for name in rising]


def _quiet(soaked: Soaked) -> list[str]:
    found = [f"left over: {name} {value:g}" for name, value in soaked.left.items() if value]
    found += [f"{name} is {phase}" for name, phase in soaked.phases.items() if phase != "serving"]
    before, after = soaked.quiet_before, soaked.quiet_after
    if before is None or after is None:
        return [*found, "there was no quiet to compare"]
    if after.fds > before.fds + FDS_SPARE:
        found.append(f"{after.fds} descriptors in the quiet, {before.fds} before the load")
    if soaked.tasks_after > soaked.tasks_before + TASKS_SPARE:
        found.append(f"{soaked.tasks_after} tasks in the quiet, {soaked.tasks_before} before the load")
    return found


def _percentiles(soaked: Soaked) -> list[str]:
    found = []
    for name in LATENCIES:
        middle, last = thirds(soaked, name)
        bound = percentile(middle, 1.0 - NOISE_SHARE)
        if bound is not None and last and median(last) > bound:
            found.append(f"{name} is {median(last):.3f} in the last third, above the noise of the middle one ({bound:.3f})")
    return found
