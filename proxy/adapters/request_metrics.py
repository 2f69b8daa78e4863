"""Metrics that move as requests end. Labels are outcomes, gates and the policy's classes, all of them closed lists."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from proxy.ports.record import RequestRecord

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
TPOT_SECONDS = (0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)


class RequestMetrics:
    """Counters and histograms of finished requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._requests = Counter("kvgate_requests", "Requests ended", ("outcome", "traffic_class"), registry=registry)
        self._refusals = Counter("kvgate_refusals", "Requests refused, by the gate that fired", ("gate",), registry=registry)
        self._reroutes = Counter("kvgate_reroutes", "Requests sent to another replica before the first byte", registry=registry)
        self._tokens = Counter("kvgate_tokens", "Tokens of finished requests", ("kind",), registry=registry)
        targets = ("traffic_class", "met")
        self._ttft_targets = Counter("kvgate_ttft_targets", "First tokens beside the class's target", targets, registry=registry)
        self._tpot_targets = Counter("kvgate_tpot_targets", "Streams beside the class's TPOT target", targets, registry=registry)
        self._wait = self._histogram("kvgate_queue_wait_seconds", "Wait for a place", SECONDS)
        self._ttft = self._histogram("kvgate_ttft_seconds", "Arrival to first token, queue included", SECONDS)
        self._tpot = self._histogram("kvgate_tpot_seconds", "Per output token after the first", TPOT_SECONDS)
        self._total = self._histogram("kvgate_request_seconds", "Arrival to end", SECONDS)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, ("traffic_class",), buckets=buckets, registry=self._registry)

    def request_finished(self, record: RequestRecord) -> None:
        """Count it."""
        name = record.traffic_class
        self._requests.labels(record.outcome.value, name).inc()
        if record.gate is not None:
            self._refusals.labels(record.gate).inc()
        if record.reroutes:
            self._reroutes.inc(record.reroutes)
        if record.queue_wait_s is not None:
            self._wait.labels(name).observe(record.queue_wait_s)
        if record.ttft_s is not None:
            self._ttft.labels(name).observe(record.ttft_s)
            _beside(self._ttft_targets, name, record.ttft_s, record.ttft_target_s)
        if record.tpot_s is not None:
            self._tpot.labels(name).observe(record.tpot_s)
            _beside(self._tpot_targets, name, record.tpot_s, record.tpot_target_s)
        self._total.labels(name).observe(record.total_s)
        if record.prompt_tokens_reported:
            self._tokens.labels("prompt").inc(record.prompt_tokens_reported)
        if record.output_tokens:
            self._tokens.labels("output").inc(record.output_tokens)


def _beside(counter: Counter, traffic_class: str, measured_s: float, target_s: float | None) -> None:
    if target_s is not None:
        counter.labels(traffic_class, "yes" if measured_s <= target_s else "no").inc()
