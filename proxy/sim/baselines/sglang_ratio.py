"""SGLang's new-token ratio: presume that everybody running generates that share of his cap; less of it while nobody is retracted.

    Σ running (P + g)  +  Σ decoding  ratio · min(cap − g, 4096)  +  Σ not decoding yet  min(cap, 4096)
        +  P + min(cap, 4096) of the new one   <   usable tokens

``ratio`` starts at min(0.7 · conservativeness, 1), falls in equal steps to 0.14 of that over 600 decode steps, and is set to
min(1, (Σ g + 20 · n) ÷ (Σ cap + 1)) when the engine retracts; in front of vLLM that is a rise of its preemption counter.

Fails: it needs honest caps, and a preemption is its only lesson; the counter shows it when the victim resumes.
"""

from collections.abc import Sequence

from proxy.sim.baselines.rule import Rule
from proxy.sim.baselines.views import Offer, Placed, ReplicaView

INITIAL_RATIO = 0.7
MIN_FACTOR = 0.14
DECAY_STEPS = 600
RETRACT_DECODE_STEPS = 20
CLIP_TOKENS = 4096


class NewTokenRatio(Rule):
    """One ratio per replica. SGLang looks at every step; here every 20 ms."""

    look_s = 0.02
    look_again = True

    def __init__(self, conservativeness: float = 1.0) -> None:
        if conservativeness <= 0.0:
            raise ValueError("schedule conservativeness, above 0")
        self.ratio_initial = min(INITIAL_RATIO * conservativeness, 1.0)
        self.ratio_min = min(self.ratio_initial * MIN_FACTOR, 1.0)
        self.ratios: dict[str, float] = {}

    def start(self, replicas: Sequence[ReplicaView], seed: int) -> None:
        """As confident as a fresh server."""
        del seed
        self.ratios = {replica.spec.name: self.ratio_initial for replica in replicas}

    def fits(self, offer: Offer, replica: ReplicaView, now_s: float) -> bool:
        """Whether what runs, what it is presumed to grow by, and the new one at its cap fit; an empty replica takes anything."""
        del now_s
        if not replica.live:
            return True
        ratio = self.ratios[replica.spec.name]
        presumed = sum(placed.held_tokens + self._growth_tokens(placed, ratio) for placed in replica.live.values())
        return presumed + offer.prompt_tokens + min(offer.output_tokens_max, CLIP_TOKENS) < replica.usable_tokens

    @staticmethod
    def _growth_tokens(placed: Placed, ratio: float) -> float:
        return (ratio if placed.output_tokens else 1.0) * min(placed.offer.output_tokens_max - placed.output_tokens, CLIP_TOKENS)

    def progressed(self, placed: Placed, replica: ReplicaView) -> None:
        """A decode step yields one token of everybody: a token is its share of a step."""
        del placed
        fall = (self.ratio_initial - self.ratio_min) / DECAY_STEPS / len(replica.live)
        self.ratios[replica.spec.name] = max(self.ratio_min, self.ratios[replica.spec.name] - fall)

    def scraped(self, replica: ReplicaView, preemptions: float) -> None:
        """The engine preempted: what has been generated so far tells what will be."""
        if preemptions > 0:
            live = replica.live.values()
            decoded = sum(placed.output_tokens for placed in live) + RETRACT_DECODE_STEPS * len(live)
            caps = sum(placed.offer.output_tokens_max for placed in live)
            self.ratios[replica.spec.name] = min(1.0, decoded / (caps + 1))
