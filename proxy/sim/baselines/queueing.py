"""The queue around every baseline: first come, first served, shed at the deadline, bounded as the policy says. Only the rule differs.

The head goes when its rule allows a replica; nobody overtakes it. A prompt that no replica can hold is refused at once, as an engine
would refuse it. Fails: it has no bands, tenants or backfilling; that is what it is there to be compared with.
"""

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from math import inf
from random import Random

from proxy.core.outcome import Outcome
from proxy.core.policy import Queue
from proxy.core.replica import ReplicaSample, ReplicaSpec, aggregate
from proxy.sim.admission import Ways
from proxy.sim.baselines.routing import Routing
from proxy.sim.baselines.rule import Rule
from proxy.sim.baselines.views import Offer, Placed, ReplicaView
from proxy.sim.sim_request import SimRequest


class Queueing:
    """An ``Admission`` made of a rule and a routing. Deterministic for a seed."""

    def __init__(self, rule: Rule, routing: Routing, bounds: Queue, *, seed: int = 0) -> None:
        self.rule = rule
        self.replicas: list[ReplicaView] = []
        self._routing = routing
        self._bounds = bounds
        self._seed = seed
        self._rng = Random(seed)
        self._queue: OrderedDict[str, Offer] = OrderedDict()
        self._queued_tokens = 0
        self._deadlines: list[tuple[float, str]] = []
        self._place_of: dict[str, ReplicaView] = {}
        self._looked_s = -inf
        self._stuck = False  # the head fits nowhere until something ends or is scraped
        self._timer_s = inf

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    def start(self, world: Ways, replicas: Sequence[ReplicaSpec]) -> None:
        """Take the replicas as empty."""
        self._world = world
        self.replicas = [ReplicaView(spec) for spec in replicas]
        self.rule.start(self.replicas, self._seed)

    def arrive(self, request: SimRequest, deadline_s: float) -> None:
        """Queue it, or refuse it."""
        offer = self._offer(request)
        if not any(self._holds(replica, offer) for replica in self.replicas):
            self._world.shed(offer.request_id, Outcome.NEVER_FITS, None)
        elif (
            len(self._queue) >= self._bounds.requests_max
            or self._queued_tokens + offer.prompt_tokens > self._bounds.tokens_max
        ):  # fmt: skip
            self._world.shed(offer.request_id, Outcome.QUEUE_FULL, None)
        else:
            self._queue[offer.request_id] = offer
            self._queued_tokens += offer.prompt_tokens
            heapq.heappush(self._deadlines, (deadline_s, offer.request_id))
            self._turn()

    def observe(self, sample: ReplicaSample) -> None:
        """Keep the scrape, and look whether it lets somebody through."""
        found = aggregate(sample.engines)
        if found is not None:
            replica = next(each for each in self.replicas if each.spec.name == sample.replica)
            before = replica.preemptions_total
            replica.take_in(found, sample.sampled_s, self._world.now_s)
            self.rule.scraped(replica, replica.preemptions_total - before)
        self._stuck = False
        self._turn()

    def progress(self, request_id: str, output_tokens: int) -> None:
        """Note what a streaming request streamed."""
        replica = self._place_of.get(request_id)
        if replica is None:
            return
        placed = replica.live[request_id]
        if placed.offer.streaming:
            if placed.first_s is None:
                placed.first_s = self._world.now_s
            placed.output_tokens = output_tokens
            self.rule.progressed(placed, replica)

    def ended(self, request_id: str, output_tokens: int, *, natural: bool) -> None:
        """Free its place. These rules learn from every end, whether the model chose it or not."""
        del natural
        replica = self._place_of.pop(request_id)
        placed = replica.live.pop(request_id)
        placed.output_tokens = output_tokens
        self.rule.ended(placed, replica)
        self._stuck = False
        self._turn()

    def _offer(self, request: SimRequest) -> Offer:
        room = max(1, max(replica.spec.context_tokens_max for replica in self.replicas) - request.prompt_tokens)
        cap = room if request.output_tokens_max is None else min(room, request.output_tokens_max)
        return Offer(request.request_id, request.prompt_tokens, cap, request.streaming)

    @staticmethod
    def _holds(replica: ReplicaView, offer: Offer) -> bool:
        tokens = offer.prompt_tokens + 1
        return tokens <= replica.spec.context_tokens_max and replica.blocks(tokens) <= replica.spec.usable_blocks

    def _leave(self, request_id: str) -> None:
        self._queued_tokens -= self._queue.pop(request_id).prompt_tokens

    def _turn(self) -> None:
        """Shed who waited too long, let through who may go, and come back when time alone changes something."""
        now_s = self._world.now_s
        self._expire(now_s)
        if self._queue and not self._stuck and now_s >= self._looked_s + self.rule.look_s - 1e-9:
            self._look(now_s)
        if self._queue:
            look_s = inf if self._stuck else self._looked_s + self.rule.look_s
            self._come_back(min(look_s, self._deadlines[0][0]))

    def _expire(self, now_s: float) -> None:
        while self._deadlines and (self._deadlines[0][0] <= now_s or self._deadlines[0][1] not in self._queue):
            _, request_id = heapq.heappop(self._deadlines)
            if request_id in self._queue:
                self._stuck = False  # it may have been the head
                self._leave(request_id)
                self._world.shed(request_id, Outcome.QUEUE_TIMEOUT, None)

    def _look(self, now_s: float) -> None:
        self._looked_s = now_s
        self._stuck = False
        self.rule.look()
        admitted = 0
        while self._queue and admitted < self.rule.admissions_per_look:
            offer = next(iter(self._queue.values()))
            fitting = [each for each in self.replicas if self._holds(each, offer) and self.rule.fits(offer, each, now_s)]
            if not fitting:
                self._stuck = not self.rule.look_again
                break
            self._forward(offer, self._routing.choose(fitting, self._rng))
            admitted += 1

    def _forward(self, offer: Offer, replica: ReplicaView) -> None:
        self._leave(offer.request_id)
        placed = replica.live[offer.request_id] = Placed(offer, self._world.now_s)
        self._place_of[offer.request_id] = replica
        self.rule.forwarded(placed, replica)
        self._world.forward(offer.request_id, replica.spec.name)

    def _come_back(self, at_s: float) -> None:
        if at_s < self._timer_s:
            self._timer_s = at_s

            def tick() -> None:
                if self._timer_s == at_s:  # else an earlier one came in between
                    self._timer_s = inf
                    self._turn()

            self._world.at(at_s, tick)
