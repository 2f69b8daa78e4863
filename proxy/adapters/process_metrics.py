"""The process's state as metrics, but for replicas, relay, tenants and store, which have modules of their own."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from proxy import __version__
from proxy.adapters.metric_families import labelled, unlabelled
from proxy.core.outcome import Mode
from proxy.ports.state import ProcessState


def process_metrics(state: ProcessState) -> Iterator[Metric]:
    """Every family."""
    gauges = (
        ("kvgate_queue_requests", "Requests waiting in kvgate", state.queue_requests),
        ("kvgate_queue_tokens", "Prompt tokens waiting in kvgate", state.queue_tokens),
        ("kvgate_queue_bytes", "Body bytes waiting in kvgate", state.queue_bytes),
        ("kvgate_queue_oldest_seconds", "Age of the longest wait", state.queue_oldest_s),
        ("kvgate_open_requests", "Requests that hold a lease", state.open_requests),
        ("kvgate_responses_known", "Stored responses whose replica is remembered", state.responses_known),
        ("kvgate_background_leases", "Responses in the background that hold a place", state.background_leases),
        ("kvgate_body_bytes_held", "Bytes of request bodies in memory", state.body_bytes_held),
        ("kvgate_websockets", "WebSockets that are open; they hold no place", state.websockets),
        ("kvgate_process_tasks", "Tasks of the event loop that have not ended", state.tasks),
        ("kvgate_guard_tripped", "1 while faults inside kvgate make it forward without admission", state.guard_tripped),
        ("kvgate_tokenizer_backlog_requests", "Prompts waiting for or in the tokenizer", state.tokenizer_backlog),
        ("kvgate_tokenizer_backlog_bytes", "Prompt bytes waiting for or in the tokenizer", state.tokenizer_backlog_bytes),
    )
    yield from unlabelled(gauges)
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
    yield from unlabelled(counters, counter=True)
    yield labelled("kvgate_token_counts", "Prompts counted, by how", "source", dict(state.counted_by_source), counter=True)
    requests = {name: count for name, count, _ in state.queue_by_class}
    yield labelled("kvgate_queue_class_requests", "Requests waiting in kvgate, by class", "traffic_class", requests)
    tokens = {name: count for name, _, count in state.queue_by_class}
    yield labelled("kvgate_queue_class_tokens", "Prompt tokens waiting in kvgate, by class", "traffic_class", tokens)
    yield labelled("kvgate_queue_class_oldest_seconds", "Age of the longest wait, by class", "traffic_class", _oldest(state))
    yield labelled("kvgate_limit", "The policy's limits, by key", "key", dict(state.limits))
    modes = {mode.value: float(mode.value == state.mode) for mode in Mode}
    yield labelled("kvgate_mode", "1 for the mode in force", "mode", modes)
    left_s = {} if state.mode_override_left_s is None else {state.mode: state.mode_override_left_s}
    yield labelled("kvgate_mode_override_seconds", "Time left of a mode set by hand", "mode", left_s)
    drains = dict(state.drain_override_left_s)
    yield labelled("kvgate_drain_override_seconds", "Time left of a replica's drain by hand", "replica", drains)
    policy = state.policy
    reloads = dict(policy.reloads)
    yield labelled("kvgate_policy_reloads", "Changes of the policy file, by whether it was good", "result", reloads, counter=True)
    yield GaugeMetricFamily("kvgate_policy_last_good_timestamp_seconds", "When a good policy was last read", policy.good_s)
    yield labelled("kvgate_policy_info", "1, by the version that rules", "version", {policy.version: 1.0})
    yield GaugeMetricFamily("kvgate_policy_faults", "Faults of the policy file as it is now", float(len(policy.faults)))
    found = state.discovery
    if found is not None:
        yield GaugeMetricFamily("kvgate_discovery_age_seconds", "Since the source of replicas last answered", found.age_s)
        yield GaugeMetricFamily("kvgate_discovery_replicas", "Replicas that the source told last", float(found.replicas))
    yield labelled("kvgate_build_info", "1, by version", "version", {__version__: 1.0})


def _oldest(state: ProcessState) -> dict[str, float]:
    """Of every class that ever waited: 0 where nobody does now."""
    return dict.fromkeys((name for name, _, _ in state.queue_by_class), 0.0) | dict(state.queue_oldest_by_class)
