"""What is counted in plain numbers is shown as prometheus-client would show it."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from proxy.adapters.metric_families import rendered
from proxy.adapters.tallies import Histograms, Tallies

BOUNDS = (0.005, 0.25, 1.0, 60.0)


def shown(registry: CollectorRegistry) -> bytes:
    return b"".join(part for family in registry.collect() for part in rendered(family))


def test_counters_are_shown_as_the_librarys() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tallies, plain = Tallies("kvgate_x", "Things", ("kind", "class"), ours), Tallies("kvgate_y", "Others", (), ours)
    counter, other = (
        Counter("kvgate_x", "Things", ("kind", "class"), registry=theirs),
        Counter("kvgate_y", "Others", registry=theirs),
    )
    assert shown(ours) == shown(theirs), "nothing but a zero of the one without labels"
    for kind, amount in (("a", 1.0), ("b", 2.5), ("a", 3.0)):
        tallies.of(kind, 'with "quotes"').total += amount
        counter.labels(kind, 'with "quotes"').inc(amount)
    plain.of().total += 7
    other.inc(7)
    assert shown(ours) == shown(theirs)


def test_histograms_are_shown_as_the_librarys_at_and_beside_every_bound() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histograms, plain = Histograms("kvgate_s", "Seconds", ("class",), BOUNDS, ours), Histograms("kvgate_t", "S", (), BOUNDS, ours)
    library = Histogram("kvgate_s", "Seconds", ("class",), buckets=BOUNDS, registry=theirs)
    other = Histogram("kvgate_t", "S", buckets=BOUNDS, registry=theirs)
    assert shown(ours) == shown(theirs)
    for bound in BOUNDS:
        for value in (bound, bound * 0.999, bound * 1.001, 0.0):
            histograms.of("default").observe(value)
            library.labels("default").observe(value)
    plain.of().observe(1e9)
    other.observe(1e9)
    assert shown(ours) == shown(theirs)
