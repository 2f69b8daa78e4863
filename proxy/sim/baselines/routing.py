"""Which of the replicas that a rule allows. All see their own requests and the last scrape; random ones are seeded."""

from collections.abc import Sequence
from itertools import count
from random import Random
from typing import Protocol

from proxy.sim.baselines.views import ReplicaView


class Routing(Protocol):
    """Chooses one of at least one replica, given in a fixed order."""

    def choose(self, replicas: Sequence[ReplicaView], rng: Random) -> ReplicaView:
        """The one to send the next request to."""
        ...


class FewestOutstanding:
    """Fewest own requests there now; the first of equals."""

    def choose(self, replicas: Sequence[ReplicaView], rng: Random) -> ReplicaView:
        """Exact and instantaneous, so it needs no chance."""
        del rng
        return min(replicas, key=lambda replica: len(replica.live))


class RoundRobin:
    """Each in turn."""

    def __init__(self) -> None:
        self._turn = count()

    def choose(self, replicas: Sequence[ReplicaView], rng: Random) -> ReplicaView:
        """The next."""
        del rng
        return replicas[next(self._turn) % len(replicas)]


class PowerOfTwoChoices:
    """Two at random, of them the one with fewer own requests (Mitzenmacher): robust where loads are known late."""

    def choose(self, replicas: Sequence[ReplicaView], rng: Random) -> ReplicaView:
        """The less loaded of two."""
        pair = rng.sample(list(replicas), min(2, len(replicas)))
        return min(pair, key=lambda replica: len(replica.live))


class LeastWaiting:
    """Shortest engine queue at the last scrape, then fewest running, then chance: between two scrapes all go to the same one."""

    def choose(self, replicas: Sequence[ReplicaView], rng: Random) -> ReplicaView:
        """By the last scrape alone."""
        return min(replicas, key=lambda replica: (replica.waiting, replica.running, rng.random()))


class ScoredByMetrics:
    """llm-d's queue and KV scorers, equally weighed: (most waiting − waiting) ÷ (most − least) + 1 − usage; ties by chance."""

    def choose(self, replicas: Sequence[ReplicaView], rng: Random) -> ReplicaView:
        """By the last scrape alone, without what was sent since."""
        most = max(replica.waiting for replica in replicas)
        spread = most - min(replica.waiting for replica in replicas)

        def score(replica: ReplicaView) -> tuple[float, float]:
            queue = (most - replica.waiting) / spread if spread else 1.0
            return queue + 1.0 - replica.kv_usage_ratio, rng.random()

        return max(replicas, key=score)
