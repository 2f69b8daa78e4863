"""Rows of the report: a figure over seeds with its confidence interval, its target, and in words whether it was reached.

The run is the statistical unit. Intervals are 95 % percentile bootstraps over seeds; ratios are made per seed first, so that both
sides saw the same requests. With five seeds such an interval is somewhat too narrow; with one there is none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.bench.admission_runs import Results, Task

RESAMPLES = 10_000
AT_LEAST, AT_MOST = ">=", "<="
Make = Callable[[int], Task]
"""The task of one seed."""


@dataclass(frozen=True)
class Plan:
    """What is asked for. ``data`` is the folder of recorded workloads, None where there is none."""

    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    quick: bool = False
    data: str | None = None

    @property
    def few_seeds(self) -> tuple[int, ...]:
        """For what takes minutes a run."""
        return self.seeds[:3]

    def requests(self, count: int) -> int:
        """So many, or a fraction to see that it works: twice the clients of a small pool's closed loop."""
        return max(200, count // 12) if self.quick else count


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean over seeds and its interval; the bounds are None for one seed."""

    mean: float
    low: float | None
    high: float | None
    count: int


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and bootstrap interval; None where nothing was measured."""
    if not values:
        return None
    found = np.asarray(values, dtype=float)
    if len(found) == 1:
        return Estimate(float(found[0]), None, None, 1)
    draws = np.random.default_rng(1).integers(0, len(found), (RESAMPLES, len(found)))
    low, high = np.percentile(found[draws].mean(axis=1), [2.5, 97.5])
    return Estimate(float(found.mean()), float(low), float(high), len(found))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table. Without a target it is for comparison. ``digits`` after the point."""

    what: str
    values: tuple[float, ...]
    sense: str = ""
    target: float | None = None
    unit: str = ""
    digits: int = 3

    @property
    def verdict(self) -> str:
        """Whether the target was reached, and whether the interval leaves a doubt."""
        found = estimate(self.values)
        if self.target is None:
            return ""
        if found is None:
            return "not measured"
        # To the digits that are shown: 5.04 is not above a target of 5.0. Signed so that more is better.
        sign = 1.0 if self.sense == AT_LEAST else -1.0
        bounds = [found.mean if bound is None else bound for bound in (found.low, found.mean, found.high)]
        low, mean, high = sorted(sign * round(bound, self.digits) for bound in bounds)
        aim = sign * round(self.target, self.digits)
        if mean >= aim:
            return "reached" if low >= aim else "reached on average"
        return "missed on average" if high >= aim else "not reached"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with a heading and a word on what they are."""

    title: str
    note: str
    rows: list[Row]


@dataclass(frozen=True)
class Read:
    """Reads figures of all seeds out of the results."""

    results: Results
    seeds: tuple[int, ...]
    missing: set[str] = field(default_factory=set)

    def values(self, make: Make, figure: str) -> tuple[float, ...]:
        """One figure, for each seed that has it."""
        return tuple(value for _, value in self._by_seed(make, figure))

    def ratios(self, above: Make, below: Make, figure: str) -> tuple[float, ...]:
        """One figure of two policies, divided seed by seed."""
        under = dict(self._by_seed(below, figure))
        return tuple(value / under[seed] for seed, value in self._by_seed(above, figure) if under.get(seed))

    def mean(self, make: Make, figure: str) -> float | None:
        """Over seeds; None where nothing was measured."""
        values = self.values(make, figure)
        return sum(values) / len(values) if values else None

    def _by_seed(self, make: Make, figure: str) -> list[tuple[int, float]]:
        found = ((seed, self.results.figure(make(seed), figure)) for seed in self.seeds)
        return [(seed, value) for seed, value in found if value is not None]


@dataclass(frozen=True)
class Experiment:
    """A question: the runs that answer it, and how the answer is read. ``seeds`` says which of the plan's it takes."""

    name: str
    about: str
    tasks: Callable[[Plan], list[Task]]
    tables: Callable[[Plan, Results], list[Table]]
