"""Which policy rules a process, and where its replicas are heard of, for metrics and people."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PolicyState:
    """``version`` is a digest of what rules, flags included; ``faults`` are lines about the file as it is now, none where it rules.

    ``modified_s`` and ``good_s`` are wall time: when the file that rules was written (None: at the start, or before), and when a good one
    was last read. ``at_restart`` are keys whose new value waits for the process to start again.
    """

    version: str = ""
    file: str = ""
    modified_s: float | None = None
    good_s: float = 0.0
    reloads: Mapping[str, int] = field(default_factory=dict)  # by result
    faults: tuple[str, ...] = ()
    at_restart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DiscoveryState:
    """The source of replicas that no list names. ``age_s`` is since it last answered."""

    source: str
    replicas: int
    age_s: float
    fault: str | None
