"""Histograms out of a Prometheus exposition: what happened between two scrapes, its mean and its quantiles.

A quantile is read as Prometheus does: linear within its bucket, from 0 in the first. Beyond the last finite bound only that bound is
known, and it is told: too low, never too high. Bucket bounds are the exposition's own (vLLM lets operators choose them).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from proxy.wire.exposition import Scanner


@dataclass(frozen=True, slots=True)
class Histogram:
    """``cumulative[i]`` observations at or below ``bounds[i]``, the last bound infinite; ``total`` is the sum of the observations."""

    bounds: tuple[float, ...]
    cumulative: tuple[float, ...]
    total: float

    @property
    def count(self) -> float:
        """Observations."""
        return self.cumulative[-1]

    @property
    def mean(self) -> float | None:
        """None without observations."""
        return self.total / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """The value that ``share`` (0 to 1) of the observations do not exceed; None without any."""
        if not self.count:
            return None
        rank = share * self.count
        place = next(index for index, count in enumerate(self.cumulative) if count >= rank)
        lower, below = (self.bounds[place - 1], self.cumulative[place - 1]) if place else (0.0, 0.0)
        if self.bounds[place] == inf or self.cumulative[place] == below:
            return lower
        return lower + (self.bounds[place] - lower) * (rank - below) / (self.cumulative[place] - below)

    def since(self, earlier: "Histogram | None") -> "Histogram":
        """What came after ``earlier``; all of it where the two do not belong together, as after a restart."""
        if earlier is None or earlier.bounds != self.bounds or earlier.count > self.count:
            return self
        counts = tuple(now - before for now, before in zip(self.cumulative, earlier.cumulative, strict=True))
        return Histogram(self.bounds, counts, self.total - earlier.total)


class HistogramReader:
    """Reads the histograms of these names out of expositions; series of different labels (engines, models) are added up."""

    def __init__(self, names: Iterable[str], prefix: str = "") -> None:
        self.names = tuple(names)
        self._scanner = Scanner((f"{name}{suffix}" for name in self.names for suffix in ("_bucket", "_sum")), prefix)

    def read(self, text: bytes) -> Mapping[str, Histogram]:
        """By name; a name that is not exposed, or has no last bucket, is left out."""
        counts: dict[str, dict[float, float]] = {}
        sums: dict[str, float] = {}
        for series in self._scanner.scan(text).series:
            name, _, kind = series.name.rpartition("_")
            if kind == "sum":
                sums[name] = sums.get(name, 0.0) + series.value
                continue
            try:
                bound = float(series.labels.get("le", ""))
            except ValueError:
                continue
            of_name = counts.setdefault(name, {})
            of_name[bound] = of_name.get(bound, 0.0) + series.value
        found = {}
        for name, by_bound in counts.items():
            if inf in by_bound and name in sums:
                bounds = tuple(sorted(by_bound))
                found[name] = Histogram(bounds, tuple(by_bound[bound] for bound in bounds), sums[name])
        return found
