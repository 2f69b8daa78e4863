"""Metrics and the log line of every finished request.

Counters and histograms move as requests end; everything that is a state is read when somebody asks (``ports.ProcessState``). Labels come
from closed lists, from the policy's classes, or from the configured replicas. Every name stands in ``deploy/README.md``; a test holds it.
"""

import logging
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from proxy import __version__
from proxy.adapters.relay_metrics import relay_metrics
from proxy.adapters.store_metrics import store_metrics
from proxy.adapters.tenant_metrics import TenantMetrics
from proxy.core.outcome import Mode
from proxy.core.replica import ReplicaPhase
from proxy.core.saturation import Binding
from proxy.ports.record import RequestRecord
from proxy.ports.state import ProcessState
from proxy.wire.connection_faults import ConnectionFault

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
TPOT_SECONDS = (0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)
STORE_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

log = logging.getLogger("kvgate.request")


class _StateCollector(Collector):
    """Reads the process's state when metrics are asked for."""

    def __init__(self, state: Callable[[], ProcessState], tenants: TenantMetrics) -> None:
        self._state = state
        self._tenants = tenants

    def describe(self) -> list[Metric]:
        """Nothing: the state is not to be read at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every state metric."""
        state = self._state()
        yield from self._process(state)
        yield from self._replicas(state)
        yield from relay_metrics(state.relay)
        yield from self._tenants.state(state.tenants)
        if state.store is not None:
            yield from store_metrics(state.store)

    @staticmethod
    def _process(state: ProcessState) -> Iterator[Metric]:
        gauges = (
            ("kvgate_queue_requests", "Requests waiting in kvgate", state.queue_requests),
            ("kvgate_queue_tokens", "Prompt tokens waiting in kvgate", state.queue_tokens),
            ("kvgate_queue_bytes", "Body bytes waiting in kvgate", state.queue_bytes),
            ("kvgate_queue_oldest_seconds", "Age of the longest wait", state.queue_oldest_s),
            ("kvgate_open_requests", "Requests that hold a lease", state.open_requests),
            ("kvgate_responses_known", "Stored responses whose replica is remembered", state.responses_known),
            ("kvgate_background_leases", "Responses in the background that hold a place", state.background_leases),
            ("kvgate_body_bytes_held", "Bytes of request bodies in memory", state.body_bytes_held),
            ("kvgate_guard_tripped", "1 while faults inside kvgate make it forward without admission", state.guard_tripped),
            ("kvgate_tokenizer_backlog_requests", "Prompts waiting for or in the tokenizer", state.tokenizer_backlog),
            ("kvgate_tokenizer_backlog_bytes", "Prompt bytes waiting for or in the tokenizer", state.tokenizer_backlog_bytes),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(name, text, value=float(value))
        counters = (
            ("kvgate_held", "Requests that had to wait", state.held_total),
            ("kvgate_degraded", "Requests let in with fewer output tokens than they asked for", state.degraded_total),
            ("kvgate_would_hold", "Requests that enforcing would have held, in observe", state.would_hold_total),
            ("kvgate_would_shed", "Requests that enforcing would have refused, in observe", state.would_shed_total),
            ("kvgate_warm_waits", "Requests that waited for a warm replica while another had room", state.warm_waits_total),
            ("kvgate_engine_epochs", "Engine restarts seen", state.epochs_total),
            ("kvgate_token_count_mismatches", "Prompts whose own count differed from the engine's", state.count_mismatches_total),
            ("kvgate_token_count_mismatch_tokens", "Tokens by which they differed", state.count_mismatch_tokens_total),
        )
        for name, text, value in counters:
            yield CounterMetricFamily(name, text, value=float(value))
        yield _labelled("kvgate_token_counts", "Prompts counted, by how", "source", dict(state.counted_by_source), counter=True)
        requests = {name: count for name, count, _ in state.queue_by_class}
        yield _labelled("kvgate_queue_class_requests", "Requests waiting in kvgate, by class", "traffic_class", requests)
        tokens = {name: count for name, _, count in state.queue_by_class}
        yield _labelled("kvgate_queue_class_tokens", "Prompt tokens waiting in kvgate, by class", "traffic_class", tokens)
        yield _labelled("kvgate_limit", "The policy's limits, by key", "key", dict(state.limits))
        modes = {mode.value: float(mode.value == state.mode) for mode in Mode}
        yield _labelled("kvgate_mode", "1 for the mode in force", "mode", modes)
        left_s = {} if state.mode_override_left_s is None else {state.mode: state.mode_override_left_s}
        yield _labelled("kvgate_mode_override_seconds", "Time left of a mode set by hand", "mode", left_s)
        drains = dict(state.drain_override_left_s)
        yield _labelled("kvgate_drain_override_seconds", "Time left of a replica's drain by hand", "replica", drains)
        policy = state.policy
        reloads = dict(policy.reloads)
        yield _labelled(
            "kvgate_policy_reloads", "Changes of the policy file, by whether it was good", "result", reloads, counter=True
        )
        good = GaugeMetricFamily("kvgate_policy_last_good_timestamp_seconds", "When a good policy was last read", policy.good_s)
        yield good
        yield _labelled("kvgate_policy_info", "1, by the version that rules", "version", {policy.version: 1.0})
        yield GaugeMetricFamily("kvgate_policy_faults", "Faults of the policy file as it is now", float(len(policy.faults)))
        found = state.discovery
        if found is not None:
            yield GaugeMetricFamily("kvgate_discovery_age_seconds", "Since the source of replicas last answered", found.age_s)
            yield GaugeMetricFamily("kvgate_discovery_replicas", "Replicas that the source told last", float(found.replicas))
        yield _labelled("kvgate_build_info", "1, by version", "version", {__version__: 1.0})

    @staticmethod
    def _replicas(state: ProcessState) -> Iterator[Metric]:
        gauges = (
            ("kvgate_replica_usable_blocks", "KV blocks the replica can hand out", "usable_blocks"),
            ("kvgate_replica_forecast_peak_blocks", "Risk-adjusted forecast peak", "forecast_peak_blocks"),
            ("kvgate_replica_ledger_low_blocks", "Blocks our placed leases hold now", "ledger_low_blocks"),
            ("kvgate_replica_ledger_high_blocks", "Blocks with those not known to be placed", "ledger_high_blocks"),
            ("kvgate_replica_measured_blocks", "Blocks in use as the engine says", "measured_blocks"),
            ("kvgate_replica_bias_blocks", "Blocks in use that the ledger cannot explain", "bias_blocks"),
            ("kvgate_replica_margin_z", "Standard deviations above the expected peak", "z"),
            ("kvgate_replica_leases", "Requests of ours on the replica", "leases"),
            ("kvgate_replica_engine_running", "Requests running, as the engine says", "running"),
            ("kvgate_replica_engine_waiting", "Requests waiting in the engine", "waiting"),
            ("kvgate_replica_sample_age_seconds", "Age of the last measurement", "sample_age_s"),
            ("kvgate_replica_steps_per_second", "Decode steps", "steps_per_s"),
            ("kvgate_replica_step_seconds", "Forecast of a step at this moment's load, prefill aside", "step_s"),
            ("kvgate_replica_prefill_token_seconds", "Learned time that one more prefill token takes", "prefill_token_s"),
            ("kvgate_replica_prefill_tokens", "Prompt tokens sent and not yet prefilled", "prefill_tokens"),
            ("kvgate_replica_prefill_tokens_max", "Bound of the prefill backlog", "prefill_tokens_max"),
            ("kvgate_replica_seats", "Sequences the engine runs at most, told or learned", "seats"),
            ("kvgate_replica_engine_queue", "Sequences that wait in the engine ahead of whoever is sent next", "engine_queue"),
            ("kvgate_replica_foreign_sequences", "Sequences there of requests that bypassed us", "foreign_sequences"),
            ("kvgate_replica_second_proxy", "1 while what bypasses us looks like another kvgate", "second_proxy"),
            ("kvgate_replica_prefix_credit", "Share of expected prefix hits that comes true", "prefix_hit_credit_ratio"),
            ("kvgate_replica_enforced", "0 where kvgate only observes", "enforced"),
        )
        for name, text, attribute in gauges:
            values = {one.name: value for one in state.replicas if (value := getattr(one, attribute)) is not None}
            yield _labelled(name, text, "replica", values)
        totals = (
            ("kvgate_replica_preemptions", "Preemptions as the engine counts them", "preemptions_total"),
            (
                "kvgate_replica_cache_recoveries",
                "Times that a lost prefix cache had to be brought back",
                "cache_recoveries_total",
            ),
            (
                "kvgate_replica_prefix_expected_tokens",
                "Prompt tokens expected in its prefix cache when they were sent",
                "prefix_hit_tokens_expected_total",
            ),
            (
                "kvgate_replica_prefix_hit_tokens",
                "Prompt tokens that the engine found in its prefix cache",
                "prefix_hit_tokens_counted_total",
            ),
        )
        for name, text, attribute in totals:
            values = {one.name: value for one in state.replicas if (value := getattr(one, attribute)) is not None}
            yield _labelled(name, text, "replica", values, counter=True)
        phases = GaugeMetricFamily("kvgate_replica_phase", "1 for the replica's phase", labels=("replica", "phase"))
        for one in state.replicas:
            for phase in ReplicaPhase:
                phases.add_metric((one.name, phase.value), float(phase.value == one.phase))
        yield phases
        bindings = GaugeMetricFamily(
            "kvgate_replica_binding", "1 for the limit that the last request looked at met", labels=("replica", "binding")
        )
        for one in state.replicas:
            for binding in Binding if one.binding else ():
                bindings.add_metric((one.name, binding.value), float(binding.value == one.binding))
        yield bindings


def _labelled(name: str, text: str, label: str, values: dict[str, float] | dict[str, int], *, counter: bool = False) -> Metric:
    family = (CounterMetricFamily if counter else GaugeMetricFamily)(name, text, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), float(value))
    return family


class PrometheusTelemetry:
    """``ports.Telemetry`` over prometheus-client and logging."""

    def __init__(self, state: Callable[[], ProcessState]) -> None:
        self.registry = CollectorRegistry()
        self._tenants = TenantMetrics(self.registry)
        self.registry.register(_StateCollector(state, self._tenants))
        self._requests = Counter("kvgate_requests", "Requests ended", ("outcome", "traffic_class"), registry=self.registry)
        self._refusals = Counter("kvgate_refusals", "Requests refused, by the gate that fired", ("gate",), registry=self.registry)
        self._errors = Counter("kvgate_internal_errors", "Faults inside kvgate", ("part",), registry=self.registry)
        self._reroutes = Counter(
            "kvgate_reroutes", "Requests sent to another replica before the first byte", registry=self.registry
        )
        self._connections = Counter(
            "kvgate_connections_refused",
            "Connections given up before a whole request had come",
            ("fault",),
            registry=self.registry,
        )
        self._tokens = Counter("kvgate_tokens", "Tokens of finished requests", ("kind",), registry=self.registry)
        targets = ("traffic_class", "met")
        self._ttft_targets = Counter(
            "kvgate_ttft_targets", "First tokens beside the class's target", targets, registry=self.registry
        )
        self._tpot_targets = Counter(
            "kvgate_tpot_targets", "Streams beside the class's TPOT target", targets, registry=self.registry
        )
        self._wait = self._histogram("kvgate_queue_wait_seconds", "Wait for a place", SECONDS)
        self._ttft = self._histogram("kvgate_ttft_seconds", "Arrival to first token, queue included", SECONDS)
        self._tpot = self._histogram("kvgate_tpot_seconds", "Per output token after the first", TPOT_SECONDS)
        self._total = self._histogram("kvgate_request_seconds", "Arrival to end", SECONDS)
        self._store = Histogram(
            "kvgate_store_seconds", "Answers of the shared store", ("call",), buckets=STORE_SECONDS, registry=self.registry
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, ("traffic_class",), buckets=buckets, registry=self.registry)

    def request_finished(self, record: RequestRecord) -> None:
        """Count it, and write its line."""
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
        self._tenants.request_finished(record)
        if log.isEnabledFor(logging.INFO):
            log.info("request.finished %s", _line(record))

    def internal_error(self, part: str) -> None:
        """Count a fault inside kvgate."""
        self._errors.labels(part).inc()

    def connection_refused(self, fault: ConnectionFault) -> None:
        """A connection was given up before a whole request had come."""
        self._connections.labels(fault.value).inc()

    def store_called(self, call: str, seconds: float) -> None:
        """The shared store answered a call of that kind."""
        self._store.labels(call).observe(seconds)

    def exposition(self) -> tuple[bytes, bytes]:
        """Content type and text."""
        return CONTENT_TYPE_LATEST.encode(), generate_latest(self.registry)


def _beside(counter: Counter, traffic_class: str, measured_s: float, target_s: float | None) -> None:
    if target_s is not None:
        counter.labels(traffic_class, "yes" if measured_s <= target_s else "no").inc()


def _line(record: RequestRecord) -> str:
    """Key=value pairs, times to a tenth of a millisecond, nothing that is not known."""
    pairs = (
        ("id", record.request_id), ("route", record.route), ("outcome", record.outcome), ("gate", record.gate),
        ("class", record.traffic_class), ("tenant", record.tenant), ("model", record.model), ("replica", record.replica),
        ("status", record.status), ("wait_s", _s(record.queue_wait_s)), ("ttft_s", _s(record.ttft_s)), ("tpot_s", _s(record.tpot_s)),
        ("total_s", _s(record.total_s)), ("prompt_tokens", record.prompt_tokens), ("prompt_tokens_engine", record.prompt_tokens_reported),
        ("output_tokens", record.output_tokens), ("output_forecast", _s(record.output_tokens_forecast)),
        ("counted", record.count_source), ("reroutes", record.reroutes or None),
    )  # fmt: skip
    return " ".join(f"{key}={_word(value)}" for key, value in pairs if value is not None)


def _s(value: float | None) -> str | None:
    return None if value is None else f"{value:.4f}"


def _word(value: object) -> str:
    """Client-chosen text stays one word on one line."""
    text = str(value)
    return text if text.isprintable() and " " not in text and text else repr(text)
