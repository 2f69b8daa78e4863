"""Metrics of finished requests, of faults and of the process.

Counters and histograms move as requests end; everything that is a state is read when somebody asks (``ports.ProcessState``). Labels come
from closed lists, from the policy's classes, or from the configured replicas. Every name stands in ``deploy/README.md``; a test holds it.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from proxy.adapters.metric_families import rendered
from proxy.adapters.pool_metrics import pool_metrics
from proxy.adapters.process_metrics import process_metrics
from proxy.adapters.relay_metrics import relay_metrics
from proxy.adapters.replica_metrics import replica_metrics
from proxy.adapters.request_metrics import RequestMetrics
from proxy.adapters.store_metrics import store_metrics
from proxy.adapters.tallies import Histograms
from proxy.adapters.tenant_metrics import TenantMetrics
from proxy.core.outcome import Refusal
from proxy.ports.record import RequestRecord
from proxy.ports.state import ProcessState, StateReading
from proxy.wire.connection_faults import ConnectionFault

STORE_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
LAG_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class PrometheusTelemetry:
    """``ports.Telemetry`` over prometheus-client."""

    content_type = CONTENT_TYPE_LATEST.encode()

    def __init__(self, state: Callable[[], StateReading]) -> None:
        self.registry = CollectorRegistry()
        self._state = state
        self._tenants = TenantMetrics(self.registry)
        self._finished = RequestMetrics(self.registry)
        self._errors = Counter("kvgate_internal_errors", "Faults inside kvgate", ("part",), registry=self.registry)
        lag = "How late a callback that is due gets its turn on the event loop"
        self._lag = Histograms("kvgate_event_loop_lag_seconds", lag, (), LAG_SECONDS, self.registry).of()
        ProcessCollector(registry=self.registry)
        self._connections = Counter(
            "kvgate_connections_refused",
            "Connections given up before a whole request had come",
            ("fault",),
            registry=self.registry,
        )
        self._store = Histogram(
            "kvgate_store_seconds", "Answers of the shared store", ("call",), buckets=STORE_SECONDS, registry=self.registry
        )

    def request_finished(self, record: RequestRecord) -> None:
        """Count it."""
        self._finished.request_finished(record)
        self._tenants.request_finished(record)

    def show_parts(self, parts: Iterable[str]) -> None:
        """Show their faults from the start, as zero, so that an increase over the first one is seen."""
        for part in parts:
            self._errors.labels(part)

    def refused_unread(self, refusal: Refusal) -> None:
        """Count one that was refused whatever it asked for."""
        self._finished.refused_unread(refusal)

    def loop_lag(self, seconds: float) -> None:
        """The event loop was so late."""
        self._lag.observe(seconds)

    def internal_error(self, part: str) -> None:
        """Count a fault inside kvgate."""
        self._errors.labels(part).inc()

    def connection_refused(self, fault: ConnectionFault) -> None:
        """A connection was given up before a whole request had come."""
        self._connections.labels(fault.value).inc()

    def store_called(self, call: str, seconds: float) -> None:
        """The shared store answered a call of that kind."""
        self._store.labels(call).observe(seconds)

    def exposition_parts(self) -> Iterator[bytes]:
        """The exposition in parts that take a fraction of a millisecond each; b"" where only the state was read on.

        Whoever serves others meanwhile does so between them; a family's samples are all of one moment.
        """
        reading = self._state()
        while True:
            try:
                next(reading)
            except StopIteration as end:
                state: ProcessState = end.value
                break
            yield b""
        for family in chain(self._state_families(state), self.registry.collect()):
            yield from rendered(family)

    def _state_families(self, state: ProcessState) -> Iterator[Metric]:
        yield from process_metrics(state)
        yield from pool_metrics(state.pools)
        yield from replica_metrics(state.replicas)
        yield from relay_metrics(state.relay)
        yield from self._tenants.state(state.tenants)
        if state.store is not None:
            yield from store_metrics(state.store)
