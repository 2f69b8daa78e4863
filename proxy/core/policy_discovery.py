"""Where replicas are heard of that no list names: one source, and what holds for all that it tells of."""

from dataclasses import dataclass, field
from enum import StrEnum

from proxy.core.policy_replicas import ReplicaPolicy


class Scheme(StrEnum):
    """How a replica is spoken to."""

    HTTP = "http"
    HTTPS = "https"


@dataclass(frozen=True, slots=True)
class DnsNames:
    """Addresses behind a name (A and AAAA; a headless Service has one for each Pod), or the targets of SRV records."""

    name: str | None = None  # with ``port``
    port: int | None = None
    srv: str | None = None  # tells the ports itself
    # What a record may be late by is for its TTL to say, and Kubernetes gives 5 s: asked as often, a new replica is used, and one that
    # is gone left, about as soon as its probes would show it.
    every_s: float = 5.0


@dataclass(frozen=True, slots=True)
class KubernetesService:
    """The EndpointSlices of a Service. ``port`` is a number or a port's name; None: the only one."""

    service: str
    namespace: str | None = None  # None: that of kvgate's own Pod
    port: str | None = None


@dataclass(frozen=True, slots=True)
class Discovery:
    """At most one of the three. ``replica`` has what is the same for all of them; its address and name are not used."""

    file: str | None = None
    dns: DnsNames | None = None
    kubernetes: KubernetesService | None = None
    scheme: Scheme = Scheme.HTTP  # of replicas that are told by host and port
    replica: ReplicaPolicy = field(default_factory=lambda: ReplicaPolicy("", ""))

    @property
    def on(self) -> bool:
        """Whether there is a source."""
        return self.file is not None or self.dns is not None or self.kubernetes is not None
