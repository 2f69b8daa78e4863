"""The policy, inside: complete, frozen, valid by construction. ``config.policy_file`` makes it from YAML.

Every limit stands here with its default and the reason for that number; ``policies/default.yaml`` says the same to operators and a
test holds the two equal. Times are seconds, sizes bytes, as the names say; the YAML keys are in ``config.schema``.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_address

from proxy.core.outcome import Mode
from proxy.core.policy_classes import (
    DEFAULT_CLASS,
    ClassQueue,
    Degrade,
    Facts,
    Fallback,
    Match,
    Saturated,
    TokenRange,
    TrafficClass,
)
from proxy.core.policy_discovery import Discovery, DnsNames, KubernetesService, Scheme
from proxy.core.policy_relay import Health, Relay
from proxy.core.policy_replicas import ReplicaPolicy
from proxy.core.policy_tenants import Auth, TenantPolicy, Tenants, TenantSource

# The whole policy is imported from here, whichever file a part of it stands in.
__all__ = [
    "DEFAULT_CLASS", "KIB", "MIB", "Auth", "Budget", "ClassQueue", "Degrade", "Discovery", "DnsNames", "ErrorDetail", "Facts",
    "Fallback", "Health", "KubernetesService", "Limits", "Match", "Network", "Policy", "Queue", "Relay", "ReplicaPolicy",
    "Saturated", "Scheme", "Scrape", "Store", "TenantPolicy", "TenantSource", "Tenants", "TokenRange", "TrafficClass",
]  # fmt: skip

KIB, MIB = 1024, 1024 * 1024
Network = IPv4Network | IPv6Network


class ErrorDetail(StrEnum):
    """How much of the decision a refused client is shown."""

    FULL = "full"
    BRIEF = "brief"  # no numbers and no policy keys, for clients outside the house


@dataclass(frozen=True, slots=True)
class Queue:
    """Bounds of what waits in kvgate, per pool."""

    # As many as one process has connections for. What may wait is bound by the deadline: who will not start before it is refused. 512
    # would come before that: one replica of 175 sequences serves 548 chats within wait_s_max (fluid bound of the simulator).
    requests_max: int = 4096
    # 512 prompts of about 8k tokens: long prompts reach this bound before they reach the one above.
    tokens_max: int = 4_000_000
    # People leave a page that shows nothing for half a minute; it is also below the usual 60 s timeout of a load balancer.
    wait_s_max: float = 30.0
    # 512 bodies of 512 KiB. Bodies of waiting requests are held in memory, so this is memory that has to be there.
    bytes_max: int = 256 * MIB


@dataclass(frozen=True, slots=True)
class Budget:
    """How close to the brim replicas are filled."""

    # A recomputed request in two hundred is not felt in latency; fewer costs more concurrency than it saves.
    preemptions_per_1000: float = 5.0
    # z is how many standard deviations above the expected peak the forecast is read; feedback moves it between these limits.
    # Below 0.8 one forecast in five is exceeded by chance alone, which no error of ours can excuse.
    z_min: float = 0.8
    # At 3.5 chance exceeds two in ten thousand: above it, only concurrency is lost.
    z_max: float = 3.5


@dataclass(frozen=True, slots=True)
class Scrape:
    """How replicas are measured."""

    # Gauges change once per engine step (10 to 100 ms), and our own admissions bridge the gap: twice a second corrects the forecast
    # before an error grows, without the engine's front end noticing.
    interval_s: float = 0.5
    # A long prefill step can hold up /metrics for more than a second; two scrapes of patience.
    timeout_s: float = 2.0
    # Ten intervals without an answer are no accident: from then on the measurement counts as unknown.
    stale_s: float = 5.0
    # Every 60th scrape (30 s) asks anew who answers: a rolling restart behind one URL shows within that time.
    probe_every: int = 60


class AnswerHeaders(StrEnum):
    """What kvgate says of itself in the headers of answers."""

    FULL = "full"
    NONE = "none"  # for clients outside the house: no outcome, no wait, no replica's name


@dataclass(frozen=True, slots=True)
class Passthrough:
    """What is forwarded that would be closed."""

    # Engine control (sleep, abort, weight updates …) touches every client of a replica, so none of it is open by itself. Paths or globs;
    # what they open still takes the admin token and a named replica.
    allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What one process holds at most."""

    # A 1M-token prompt is about 4 MiB of text; the rest is room for images sent inline.
    body_bytes_max: int = 64 * MIB
    # Request line and header fields: what uvicorn's other parser and so many a vLLM takes; nginx takes 32 KiB.
    head_bytes_max: int = 64 * KIB
    # A head is one packet or two: ten seconds span three lost ones. Who takes longer is holding a connection, not sending.
    head_s_max: float = 10.0
    # And a second more for each KiB that came, so that a large body on a slow line is not cut off.
    body_s_max: float = 30.0
    # Answers that came faster than their clients read: 256 KiB each for a thousand slow ones. A replica waits for the rest.
    buffer_bytes_max: int = 256 * MIB
    # A prompt of 1k tokens takes about 1 ms: a quarter of a second's work. Beyond it a bound from the byte length must do.
    tokenizer_backlog_max: int = 256
    # Under two seconds of work: two threads tokenize about 5 MB of new text a second.
    tokenizer_backlog_bytes_max: int = 8 * MIB
    # Requests under way at once. Each costs a file descriptor here and one more upstream; the usual soft limit is 1024 to 65536.
    connections_max: int = 4096
    # Requests at a time to each replica while a fault inside kvgate keeps the forecast out: a modest max_num_seqs.
    static_cap_per_replica: int = 64
    # Stored responses whose replica is remembered, some 300 bytes each. Of one that was forgotten every replica is asked.
    responses_max: int = 65_536
    # How long a response in the background holds its place while its replica cannot be asked, or never calls it finished.
    background_s_max: float = 3600.0


@dataclass(frozen=True, slots=True)
class Store:
    """How proxies before the same replicas share what they know."""

    # A script takes a fraction of a millisecond and a packet lost once comes again within 40 ms: what takes longer is not well, and no
    # request waits for it any longer. Shorter would take every hiccup for a failure, longer would be felt in the first token.
    timeout_s: float = 0.1
    # Twelve beats: a proxy that pauses for a second is not given up, and what a dead one holds is free again after three.
    lease_s: float = 3.0
    # Four times a second: tenants' shares and completions change over seconds, and each beat costs a proxy one round trip.
    beat_s: float = 0.25
    # About as often as a forecast is made anew: grants are told at once, a rewrite only says what they came to.
    rewrite_s: float = 0.1
    # A sixteenth: what a second of usual traffic asks for is less in a pool that is half empty, which is where it is taken, and a request
    # that needs the last sixteenth of half a pool waits a second for it at most.
    ahead_ratio: float = 1.0 / 16.0


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything an operator decides."""

    mode: Mode = Mode.ENFORCE
    # All tenants. Less is for the first days of enforcing: those left out are observed, and feel nothing of it.
    enforce_ratio: float = 1.0
    replicas: tuple[ReplicaPolicy, ...] = ()
    discovery: Discovery = field(default_factory=Discovery)
    classes: tuple[TrafficClass, ...] = (DEFAULT_CLASS,)  # the first match rules; the last one matches everything
    tenants: Tenants = field(default_factory=Tenants)
    auth: Auth = Auth.PASS
    trusted_callers: tuple[Network, ...] | None = None  # whose word counts on who a request is from; None: everybody's
    queue: Queue = field(default_factory=Queue)
    budget: Budget = field(default_factory=Budget)
    scrape: Scrape = field(default_factory=Scrape)
    relay: Relay = field(default_factory=Relay)
    passthrough: Passthrough = field(default_factory=Passthrough)
    health: Health = field(default_factory=Health)
    limits: Limits = field(default_factory=Limits)
    store: Store = field(default_factory=Store)
    tokenizer: str | None = None  # a folder or a model name; None: as the replica's /v1/models tells
    error_detail: ErrorDetail = ErrorDetail.FULL
    headers: AnswerHeaders = AnswerHeaders.FULL

    def class_of(self, facts: Facts) -> TrafficClass:
        """Return the first class that covers the request."""
        for traffic_class in self.classes:
            if traffic_class.match.covers(facts):
                return traffic_class
        raise AssertionError("the last class matches everything")

    @property
    def sizes_matter(self) -> bool:
        """Whether a class is told by the length of the prompt, so that it is known only once that was counted."""
        return any(one.match.prompt_tokens is not None for one in self.classes)

    def trusts(self, address: str | None) -> bool:
        """Whether a caller at an IP address may say who a request is from; without an address (a Unix socket) only where all may."""
        if self.trusted_callers is None:
            return True
        try:
            caller = ip_address(address or "")
        except ValueError:
            return False
        mapped = getattr(caller, "ipv4_mapped", None)  # as an IPv6 socket shows an IPv4 caller
        return any((mapped or caller) in network for network in self.trusted_callers)

    def __post_init__(self) -> None:
        """Hold the invariant that ``class_of`` relies on."""
        assert self.classes, "a policy has at least the default class"
        assert self.classes[-1].match.everything, self.classes[-1]
