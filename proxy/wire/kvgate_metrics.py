"""kvgate's own ``/metrics``, read from outside: what a person asks of the gate in front."""

from collections.abc import Mapping
from dataclasses import dataclass

from proxy.wire.exposition import Scanner

MARK = b"kvgate_build_info"
_SCANNER = Scanner(
    (
        "kvgate_mode", "kvgate_guard_tripped", "kvgate_queue_requests", "kvgate_refusals_total", "kvgate_internal_errors_total",
        "kvgate_replica_phase", "kvgate_replica_binding", "kvgate_replica_sample_age_seconds", "kvgate_replica_enforced",
    ),
    prefix="kvgate_",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GateScrape:
    """One exposition. Counters are totals; maps are by replica but for ``refusals``, which are by gate."""

    mode: str | None
    guard_tripped: bool
    queued: float
    refusals: Mapping[str, float]
    internal_errors: float
    phases: Mapping[str, str]
    binding: Mapping[str, str]
    sample_age_s: Mapping[str, float]
    observed_only: tuple[str, ...]


def is_gate(text: bytes) -> bool:
    """Whether a kvgate answered, and no engine."""
    return MARK in text


def read_gate(text: bytes) -> GateScrape:
    """Read an exposition of kvgate."""
    rows = [(series.name, series.labels, series.value) for series in _SCANNER.scan(text).series]

    def the_one(name: str, label: str) -> dict[str, str]:
        return {labels.get("replica", ""): labels[label] for each, labels, value in rows if each == name and value == 1}

    def by(name: str, label: str) -> dict[str, float]:
        return {labels[label]: value for each, labels, value in rows if each == name and label in labels}

    def total(name: str) -> float:
        return sum(value for each, _, value in rows if each == name)

    enforced = by("kvgate_replica_enforced", "replica")
    return GateScrape(
        mode=the_one("kvgate_mode", "mode").get(""),
        guard_tripped=total("kvgate_guard_tripped") > 0,
        queued=total("kvgate_queue_requests"),
        refusals=by("kvgate_refusals_total", "gate"),
        internal_errors=total("kvgate_internal_errors_total"),
        phases=the_one("kvgate_replica_phase", "phase"),
        binding=the_one("kvgate_replica_binding", "binding"),
        sample_age_s=by("kvgate_replica_sample_age_seconds", "replica"),
        observed_only=tuple(name for name, value in enforced.items() if value == 0),
    )
