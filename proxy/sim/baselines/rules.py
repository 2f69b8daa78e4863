"""Rules that need no forecast: a cap, a threshold, a reservation. Each header gives the formula, where it is from, and how it fails."""

from collections.abc import Sequence

from proxy.sim.baselines.rule import Rule
from proxy.sim.baselines.views import Offer, Placed, ReplicaView


class StaticCap(Rule):
    """At most ``requests`` on a replica. Exact and instantaneous; the right number depends on the lengths of the day."""

    def __init__(self, requests: int) -> None:
        if requests < 1:
            raise ValueError("must be at least 1 request per replica")
        self.requests = requests

    def fits(self, offer: Offer, replica: ReplicaView, now_s: float) -> bool:
        """Fewer than the cap are there."""
        del offer, now_s
        return len(replica.live) < self.requests


class KvThreshold(Rule):
    """Admit while the last scraped usage is below ``ratio``: a whole queue goes in between two scrapes."""

    def __init__(self, ratio: float) -> None:
        if not 0.0 < ratio <= 1.0:
            raise ValueError("a share of the KV cache, above 0 and at most 1")
        self.ratio = ratio

    def fits(self, offer: Offer, replica: ReplicaView, now_s: float) -> bool:
        """By the last scrape alone, however old."""
        del offer, now_s
        return replica.kv_usage_ratio < self.ratio


class OwnThreshold(KvThreshold):
    """Admit while scraped usage + own prompts that the scrape cannot have counted is below ``ratio``. Never asks how far outputs grow."""

    def fits(self, offer: Offer, replica: ReplicaView, now_s: float) -> bool:
        """Usage of the scrape, and own admissions not placed at its moment."""
        del offer, now_s
        unplaced = sum(
            replica.blocks(placed.offer.prompt_tokens)
            for placed in replica.live.values()
            if placed.unplaced_at(replica.sampled_s)
        )
        return replica.kv_usage_ratio + unplaced / replica.spec.usable_blocks < self.ratio


class LearnedThreshold(OwnThreshold):
    """Feedback without a forecast: ``threshold-own`` whose level, per replica, follows the engine's preemptions by an integral law.

        level -= STEP * victims of a scrape (at most VICTIMS_MAX)
        level += STEP * AIM                              for each completion while somebody was held for it

    It rests where preemptions per completion equal ``AIM``, 3.5 per 1,000: a little more than ``core.feedback`` allows itself. Fails: it
    only acts after the fact, and a level that suits the mix of the last minute says nothing of the next one.
    """

    STEP = 0.01  # of the pool: half a sequence of a small one
    AIM = 0.7 * 5.0 / 1000.0
    VICTIMS_MAX = 3
    LEVEL_MIN, LEVEL_MAX = 0.3, 1.0

    def start(self, replicas: Sequence[ReplicaView], seed: int) -> None:
        """Every replica begins at the same level."""
        del seed
        self.levels = {replica.spec.name: self.ratio for replica in replicas}
        self._held = dict.fromkeys(self.levels, False)

    def fits(self, offer: Offer, replica: ReplicaView, now_s: float) -> bool:
        """By the replica's own level."""
        self.ratio = self.levels[replica.spec.name]
        found = super().fits(offer, replica, now_s)
        self._held[replica.spec.name] = not found
        return found

    def ended(self, placed: Placed, replica: ReplicaView) -> None:
        """Relax, where the level is what limits."""
        del placed
        if self._held[replica.spec.name]:
            self._move(replica, self.STEP * self.AIM)

    def scraped(self, replica: ReplicaView, preemptions: float) -> None:
        """Tighten."""
        self._move(replica, -self.STEP * min(preemptions, self.VICTIMS_MAX))

    def _move(self, replica: ReplicaView, by: float) -> None:
        level = self.levels[replica.spec.name] + by
        self.levels[replica.spec.name] = min(max(level, self.LEVEL_MIN), self.LEVEL_MAX)


class UtilizationDetector(Rule):
    """llm-d's default saturation detector: mean over replicas of max(waiting ÷ 5, usage ÷ 0.8) below 1.

    A replica whose last scrape arrived more than ``stale_s`` ago counts as 1. One request is dispatched per millisecond, whatever its
    size, and nothing sent since the scrape is counted. Where scrapes are further apart than ``stale_s`` it stands still in between.
    """

    look_s = 0.001
    waiting_max = 5.0
    kv_usage_ratio_max = 0.8

    def __init__(self, stale_s: float = 0.2) -> None:
        if stale_s <= 0.0:
            raise ValueError("seconds after which a scrape is stale, above 0")
        self.stale_s = stale_s
        self.admissions_per_look = 1

    def start(self, replicas: Sequence[ReplicaView], seed: int) -> None:
        """It judges the pool as one."""
        del seed
        self._replicas = replicas

    def saturation(self, now_s: float) -> float:
        """1 and above: saturated."""
        return sum(self._of(replica, now_s) for replica in self._replicas) / len(self._replicas)

    def _of(self, replica: ReplicaView, now_s: float) -> float:
        if now_s - replica.received_s > self.stale_s:
            return 1.0
        return max(replica.waiting / self.waiting_max, replica.kv_usage_ratio / self.kv_usage_ratio_max)

    def fits(self, offer: Offer, replica: ReplicaView, now_s: float) -> bool:
        """The same for every request and replica."""
        del offer, replica
        return self.saturation(now_s) < 1.0


class ReserveMax(Rule):
    """Reserve blocks for prompt + ``max_tokens`` of every request: never preempts, and leaves empty what caps overstate.

    An empty replica takes anything that it can hold, so a cap larger than the pool does not wait for ever.
    """

    def fits(self, offer: Offer, replica: ReplicaView, now_s: float) -> bool:
        """Everybody at his cap fits, this one too."""
        del now_s
        if not replica.live:
            return True
        reserved = sum(replica.blocks(self.tokens(placed.offer)) for placed in replica.live.values())
        return reserved + replica.blocks(self.tokens(offer)) <= replica.spec.usable_blocks

    @staticmethod
    def tokens(offer: Offer) -> int:
        """Most that a request can come to hold: the last token is never fed back."""
        return offer.prompt_tokens + offer.output_tokens_max - 1
