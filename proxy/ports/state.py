"""The process at one moment as plain values, for metrics."""

from collections.abc import Generator
from dataclasses import dataclass, field

from proxy.ports.policy import DiscoveryState, PolicyState
from proxy.ports.relay import RelayState
from proxy.ports.replica_state import ReplicaState
from proxy.ports.store import StoreState


@dataclass(frozen=True, slots=True)
class TenantState:
    """What one tenant may still take, and holds."""

    name: str
    left: tuple[tuple[str, float], ...] = ()  # by rate, as its policy key ends; below zero it is owed
    kv_blocks: float | None = None  # forecast peak of what it holds on all replicas; None: no share is bounded or kept
    queue_requests: int = 0


@dataclass(frozen=True, slots=True)
class PoolState:
    """What this proxy has of one pool, so that the sum over all proxies is the pool's. Blocks."""

    name: str
    replicas: int
    running_blocks: float
    queued_blocks: float
    foreign_blocks: float
    budget_blocks: float  # of one replica
    replicas_wanted: float


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The process at this moment, for metrics."""

    mode: str
    guard_tripped: bool
    replicas: tuple[ReplicaState, ...]
    queue_requests: int
    queue_tokens: int
    queue_bytes: int
    queue_oldest_s: float
    open_requests: int
    body_bytes_held: int
    websockets: int
    epochs_total: int
    held_total: int
    would_hold_total: int
    would_shed_total: int
    warm_waits_total: int
    counted_by_source: tuple[tuple[str, int], ...]
    count_mismatches_total: int
    count_mismatch_tokens_total: int
    tokenizer_backlog: int
    tokenizer_backlog_bytes: int
    tasks: int  # of the event loop
    limits: tuple[tuple[str, float], ...]  # policy key and its value, for the gauges above
    degraded_total: int = 0
    queue_by_class: tuple[tuple[str, int, int], ...] = ()  # requests and prompt tokens that wait
    queue_oldest_by_class: tuple[tuple[str, float], ...] = ()  # age of the longest wait
    tenants: tuple[TenantState, ...] = ()  # those that wait, or with a limit that is in use
    pools: tuple[PoolState, ...] = ()
    responses_known: int = 0  # stored responses whose replica is remembered
    background_leases: int = 0  # responses that go on after their answer
    store: StoreState | None = None  # None: this proxy is alone
    policy: PolicyState = field(default_factory=PolicyState)
    discovery: DiscoveryState | None = None  # None: replicas are only listed
    relay: RelayState = field(default_factory=RelayState)
    mode_override_left_s: float | None = None  # None: the policy file rules
    drain_override_left_s: tuple[tuple[str, float], ...] = ()  # by replica


StateReading = Generator[None, None, ProcessState]  # yields where others may have their turn; its value is what was read
