"""Counters and histograms that move with every request, as plain numbers; prometheus-client makes families of them when somebody asks.

Its own children take a lock and look at labels and exemplars for each increment, a microsecond each and more than a dozen for a request.
Everything here is called from the event loop alone, where nothing comes between a reading and its writing, so totals are exact.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]


class Tally:
    """One counter: ``total`` is to be added to."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0.0


class Buckets:
    """One histogram over upper ``bounds``, which it contains; what is above the last counts too."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class Tallies(Collector):
    """A family of counters. Whoever counts keeps what ``of`` gave, so that labels are looked up once."""

    def __init__(self, name: str, text: str, labels: Labels, registry: CollectorRegistry) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._tallies: dict[Labels, Tally] = {}
        if not labels:
            self.of()  # shown as zero from the start
        registry.register(self)

    def of(self, *values: str) -> Tally:
        """The counter with these labels."""
        found = self._tallies.get(values)
        if found is None:
            found = self._tallies[values] = Tally()
        return found

    def describe(self) -> Iterator[Metric]:
        """The family without samples, by which the registry knows its name."""
        yield CounterMetricFamily(self._name, self._text, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        """The family."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, tally in self._tallies.items():
            family.add_metric(values, tally.total)
        yield family


class Histograms(Collector):
    """A family of histograms, all over the same ``bounds``."""

    def __init__(self, name: str, text: str, labels: Labels, bounds: tuple[float, ...], registry: CollectorRegistry) -> None:
        self._name, self._text, self._labels, self._bounds = name, text, labels, bounds
        self._shown = [floatToGoString(bound) for bound in (*bounds, inf)]  # type: ignore[no-untyped-call]
        self._buckets: dict[Labels, Buckets] = {}
        if not labels:
            self.of()
        registry.register(self)

    def of(self, *values: str) -> Buckets:
        """The histogram with these labels."""
        found = self._buckets.get(values)
        if found is None:
            found = self._buckets[values] = Buckets(self._bounds)
        return found

    def describe(self) -> Iterator[Metric]:
        """The family without samples."""
        yield HistogramMetricFamily(self._name, self._text, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        """The family."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, buckets in self._buckets.items():
            below = [float(count) for count in accumulate(buckets.counts)]
            family.add_metric(values, list(zip(self._shown, below, strict=True)), buckets.total)
        yield family
