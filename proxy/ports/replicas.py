"""What is heard of replicas: which there are, and how each is."""

from collections.abc import AsyncIterator
from typing import Protocol

from proxy.core.policy import ReplicaPolicy
from proxy.core.replica import ReplicaFacts, ReplicaSample


class ReplicaFeed(Protocol):
    """Live state of one replica."""

    async def probe(self) -> ReplicaFacts:
        """Find out what the replica is (reference vllm.md §10.3). Raises ReplicaUnreachableError."""
        ...

    async def sample(self) -> ReplicaSample:
        """Scrape once. Raises ReplicaUnreachableError when there is no usable answer."""
        ...

    def bound(self, timeout_s: float) -> None:
        """Wait no longer than this for an answer from now on."""
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...


class ReplicaUnreachableError(Exception):
    """A probe or scrape failed; the message says why and what to do.

    ``late`` tells a server that took the connection and did not answer in time: it may be busy, not gone.
    """

    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late


class DiscoveryError(Exception):
    """The source cannot be asked, or says what cannot be used; the message says why in one line. What it said before stands."""


class ReplicaSource(Protocol):
    """One source."""

    @property
    def shown(self) -> str:
        """What it is, for people."""
        ...

    def tell(self) -> AsyncIterator[tuple[ReplicaPolicy, ...] | None]:
        """All replicas there are, again whenever they may be others; None says that nothing has changed. Raises DiscoveryError."""
        ...
