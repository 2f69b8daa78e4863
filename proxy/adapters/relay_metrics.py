"""The way to the replicas as metrics."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from proxy.ports.relay import RelayState


def relay_metrics(state: RelayState) -> Iterator[Metric]:
    """Every family."""
    left = "Requests that may be sent to a second replica now"
    yield GaugeMetricFamily("kvgate_retries_left", left, value=float(state.retries_left))
    refused = "Failed requests that were not sent to a second replica, for too many had been"
    yield CounterMetricFamily("kvgate_retries_refused", refused, value=float(state.retries_refused_total))
    held = "Bytes of answers that lie here because their clients read slowly"
    yield GaugeMetricFamily("kvgate_relay_buffered_bytes", held, value=float(state.buffered_bytes))
    timeouts = CounterMetricFamily("kvgate_upstream_timeouts", "Answers that took too long, by the limit", labels=("limit",))
    for limit, times in state.timeouts_total.items():
        timeouts.add_metric((limit,), float(times))
    yield timeouts
    ejections = CounterMetricFamily(
        "kvgate_replica_ejections", "Times that a replica was left alone for failing requests", labels=("replica", "reason")
    )
    for replica, reason, times in state.ejections_total:
        ejections.add_metric((replica, reason), float(times))
    yield ejections
