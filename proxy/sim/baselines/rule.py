"""What every baseline's rule is asked, and what it is told."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf
from typing import ClassVar

from proxy.sim.baselines.views import Offer, Placed, ReplicaView


class Rule(ABC):
    """Whether one more request may go to a replica. Everything else (order, deadlines, routing) is the same for all rules.

    ``look_s`` is the least time between two passes over the queue and ``admissions_per_look`` the most that one pass lets through.
    ``look_again`` says that a rule may answer differently later though nothing arrived, ended or was scraped.
    """

    look_s: float = 0.0
    look_again: ClassVar[bool] = False
    admissions_per_look: float = inf

    def start(self, replicas: Sequence[ReplicaView], seed: int) -> None:  # noqa: B027  (optional)
        """The world begins."""

    def look(self) -> None:  # noqa: B027
        """A pass over the queue begins."""

    @abstractmethod
    def fits(self, offer: Offer, replica: ReplicaView, now_s: float) -> bool:
        """Whether the request may go there now."""

    def forwarded(self, placed: Placed, replica: ReplicaView) -> None:  # noqa: B027
        """It went there, and is in ``replica.live``."""

    def progressed(self, placed: Placed, replica: ReplicaView) -> None:  # noqa: B027
        """It streamed a token."""

    def ended(self, placed: Placed, replica: ReplicaView) -> None:  # noqa: B027
        """It ended, ``output_tokens`` are final, and it has left ``replica.live``."""

    def scraped(self, replica: ReplicaView, preemptions: float) -> None:  # noqa: B027
        """A scrape came in; ``preemptions`` are new in it."""


class Everything(Rule):
    """Let everything through: what remains is the routing."""

    def fits(self, offer: Offer, replica: ReplicaView, now_s: float) -> bool:
        """Yes."""
        del offer, replica, now_s
        return True
