"""What is told of the way to the replicas."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RelayState:
    """The way to the replicas at this moment, for metrics. Totals count since the start."""

    retries_left: int = 0  # requests that may be sent to a second replica now
    retries_refused_total: int = 0
    timeouts_total: Mapping[str, int] = field(default_factory=dict)  # by the policy key of the patience that was over
    buffered_bytes: int = 0
    ejections_total: tuple[tuple[str, str, int], ...] = ()  # replica, reason, how often
