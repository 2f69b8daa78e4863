"""Metrics of several workers in one text: nothing lost, nothing twice, and every sample says whose it is."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from proxy.wire.merged_exposition import merged


def told(scale: float, name: str = "x") -> bytes:
    """One worker's metrics: without labels, with some of every odd sort, and a histogram."""
    registry = CollectorRegistry()
    Gauge("kvgate_open_requests", "Open, of\nall", registry=registry).set(scale)
    Counter("kvgate_requests", "Ended", ("outcome",), registry=registry).labels(f'a{{b="{name}\n}} 1 # HELP me').inc(2 * scale)
    Histogram("kvgate_ttft_seconds", "First token", ("traffic_class",), buckets=(1.0,), registry=registry).labels("c").observe(
        0.5
    )
    return generate_latest(registry)


def samples(texts: dict[int, bytes | None]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return what a Prometheus reads, each series once."""
    text = b"".join(merged(texts)).decode()
    assert text.count("# TYPE kvgate_open_requests gauge\n") == (1 if any(texts.values()) else 0)
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    values = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in found}
    assert len(values) == len(found)
    return values


def alone(text: bytes, worker: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return one worker's samples with its label."""
    found = [sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples]
    return {(one.name, frozenset({**one.labels, "worker": worker}.items())): one.value for one in found}


def up(worker: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return "kvgate_worker_up", frozenset({("worker", worker)})


def test_every_sample_of_every_worker_is_there_once() -> None:
    first, second = told(1.0), told(3.0, "y")
    expected = alone(first, "0") | alone(second, "1") | {up("0"): 1.0, up("1"): 1.0}
    assert samples({0: first, 1: second}) == expected


def test_a_worker_that_did_not_answer_is_told_of() -> None:
    first = told(1.0)
    assert samples({0: None, 2: first}) == alone(first, "2") | {up("0"): 0.0, up("2"): 1.0}
    assert samples({0: None}) == {up("0"): 0.0}
