"""The closed lists: what can become of a request, and in what mode kvgate runs.

One code serves the body's ``code``, the header ``x-kvgate-outcome``, the metric label and the log field (design §4).
``wire.answers`` is the only place that turns an outcome into HTTP; a test proves its table total over this list.
"""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """Exactly one per request."""

    COMPLETED = "completed"
    NEVER_FITS = "never_fits"
    QUEUE_TIMEOUT = "queue_timeout"
    QUEUE_FULL = "queue_full"
    DISPLACED = "displaced"
    TENANT_RATE = "tenant_rate"
    TENANT_SHARE = "tenant_share"
    UNAUTHORIZED = "unauthorized"
    NO_REPLICA = "no_replica"
    DRAINING = "draining"
    UPSTREAM_FAILED = "upstream_failed"
    CUT_OFF = "cut_off"
    CANCELLED = "cancelled"
    INTERNAL = "internal"


class Mode(StrEnum):
    """How far kvgate interferes (design §6)."""

    ENFORCE = "enforce"
    OBSERVE = "observe"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is answered without being forwarded: the gate that fired, with its numbers.

    ``gate`` names the rule (``context``, ``kv``, ``queue.requests_max`` …), ``measured`` and ``limit`` are in ``unit``;
    ``policy_key`` is the key an operator would change. ``retry_after_s`` is the forecast wait, None where no retry can help.
    """

    outcome: Outcome
    gate: str
    message: str
    measured: float | None = None
    limit: float | None = None
    unit: str = ""
    policy_key: str | None = None
    queue_position: int | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Would:
    """What enforcing would have done: held it for about ``wait_s``, or shed it (None)."""

    wait_s: float | None

    @property
    def word(self) -> str:
        """``hold`` or ``shed``."""
        return "shed" if self.wait_s is None else "hold"


@dataclass(slots=True)
class GateCounters:
    """Totals for metrics and judges."""

    admitted: int = 0
    held: int = 0
    shed: int = 0
    rerouted: int = 0
    degraded: int = 0  # let in with fewer output tokens than they asked for
    would_hold: int = 0
    would_shed: int = 0
