"""What ``/admin/live`` tells: one proxy at this moment and over the last minutes, for the live page and ``kvgate top``.

Blocks are whole KV blocks, times seconds, ``at_s`` seconds since the Unix epoch; null is what is not known. Names of tenants, classes and
models come from outside: whoever shows them escapes them. ``words`` are sentences for people, made at the proxy so that all who show them
say the same.
"""

import msgspec

Row = tuple[int | None, int | None, int | None, int | None, int | None]  # measured, estimated, forecast peak, budget, capacity


class ReplicaNow(msgspec.Struct):
    """One replica, or one engine of a data-parallel server."""

    name: str
    phase: str
    enforced: bool
    words: str = ""  # what is the matter with it, or what binds; "" where nothing is
    fault: str = ""
    binding: str = ""  # the limit that the last request looked at met
    binds: bool = False  # whether somebody waits for it
    capacity_blocks: int | None = None
    budget_blocks: int | None = None  # the capacity less the margin and what bypasses us: what expected demand may come to
    measured_blocks: int | None = None
    estimated_blocks: int | None = None  # of those known to be placed
    unplaced_blocks: int | None = None  # of those sent and perhaps not there yet
    forecast_peak_blocks: int | None = None  # margin included: kept within the capacity
    leases: int = 0
    running: int | None = None
    engine_waiting: int | None = None
    seats: int | None = None
    preemptions: int = 0
    age_s: float | None = None  # of the last measurement


class Line(msgspec.Struct):
    """What waits of one class or tenant."""

    name: str
    requests: int
    tokens: int


class WaitingNow(msgspec.Struct):
    """One that waits, near the front."""

    traffic_class: str
    tenant: str
    model: str
    prompt_tokens: int
    waited_s: float
    left_s: float | None  # until its latest start; null: it has none
    words: str


class QueueNow(msgspec.Struct):
    """Who waits. Lists are cut: ``tenants_more`` and ``waiting_more`` tell how many are left out."""

    requests: int
    tokens: int
    oldest_s: float
    requests_max: int
    tokens_max: int
    classes: list[Line]
    tenants: list[Line]
    tenants_more: int
    waiting: list[WaitingNow]
    waiting_more: int


class DecisionLine(msgspec.Struct):
    """What was decided about one request by now. ``kind`` is held, admitted, rerouted, shed, failed, or left where its client did.

    ``key`` is the same as long as the request is; ``at_s`` is when it came to ``kind``; ``replica`` is "" where it has none.
    """

    key: str
    at_s: float
    kind: str
    request_id: str
    traffic_class: str
    tenant: str
    model: str
    replica: str
    words: str


class Notice(msgspec.Struct):
    """What somebody should know. ``level`` is error, warning or note."""

    level: str
    code: str
    words: str


class Sample(msgspec.Struct):
    """One look of the ring: totals since the start, and every replica's blocks."""

    seq: int
    at_s: float
    queued: int
    open: int
    admitted: int
    held: int
    shed: int
    replicas: dict[str, Row]


class ModeNow(msgspec.Struct):
    """What rules and why; ``said`` is who set it by hand, "" where the policy file rules."""

    mode: str
    policy_mode: str
    said: str
    left_s: float | None


class PolicyNow(msgspec.Struct):
    """Which policy rules."""

    version: str
    file: str
    good_s: float
    faults: tuple[str, ...]
    at_restart: tuple[str, ...]


class StoreNow(msgspec.Struct):
    """How this proxy stands with the shared store."""

    shown: str
    phase: str
    phase_age_s: float
    error: str
    round_trip_s: float | None


class ProxyNow(msgspec.Struct):
    """One of those that share the replicas."""

    name: str
    admin: str
    mode: str
    version: str
    this: bool


class LiveReport(msgspec.Struct):
    """One answer. ``samples`` are those after the number that was asked for; ``decisions`` are those of open requests and of those that
    ended after the first so many, ``ended`` being how many ever did.
    """

    run: str  # another one after a restart, when numbers begin anew
    at_s: float
    up_s: float
    version: str  # kvgate's
    proxy: str
    headline: str
    level: str  # ok, note, warning or error: the worst of ``notices``
    mode: ModeNow
    policy: PolicyNow
    drain: str
    changes_open: bool  # whether there is an admin token, so that somebody may change something
    open_requests: int
    admitted: int
    held: int
    shed: int
    rerouted: int
    queue: QueueNow
    replicas: list[ReplicaNow]
    notices: list[Notice]
    decisions: list[DecisionLine]
    ended: int
    sample_every_s: float
    samples: list[Sample]
    drains: dict[str, str]  # by replica, who said so and why
    proxies: list[ProxyNow] = []
    store: StoreNow | None = None
