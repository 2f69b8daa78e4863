"""Who decides in a simulated world: the real gate, or something to compare it with.

``Admission`` is what a world asks of them; ``Ways`` is what they can do in it. ``GateAdmission`` is the driver of the gate that also
serves: it hands the gate its events and carries out its effects, and decides nothing. With ``oracle`` the gate is told each request's
true length as its cap: the upper bound for what any forecast can reach with the same rules. ``PlainForwarding`` sends everything on at
once, round robin. Several gates are in ``sim.proxies``.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from time import thread_time_ns
from typing import Protocol
from zlib import crc32

import numpy as np

from proxy.core.demand import Demand, LengthClass, PromptPart
from proxy.core.events import Arrive, Effect, Event, Finished, Forward, Granted, Observed, ReplicaFound, Reserve, Shed, Tick
from proxy.core.gate import Gate
from proxy.core.grid import FloatArray
from proxy.core.learned import Learned, resume
from proxy.core.ledger import Lease
from proxy.core.outcome import Mode, Outcome
from proxy.core.policy import Policy
from proxy.core.replica import ReplicaSample, ReplicaSpec
from proxy.core.survival import Running, SurvivalModel
from proxy.sim.sim_request import SimRequest

MODEL = "m"
AGAIN = "~"  # before the number of a request's repetition: "q7", "q7~1", "q7~2"


class Ways(Protocol):
    """What an admission can do in its world."""

    @property
    def now_s(self) -> float:
        """The world's time."""
        ...

    def forward(self, request_id: str, replica: str) -> None:
        """Send a request on to a replica."""
        ...

    def shed(self, request_id: str, outcome: Outcome, retry_after_s: float | None) -> None:
        """Answer a request without forwarding it."""
        ...

    def cut(self, request_id: str) -> None:
        """End a request because its proxy died: its client is left alone, its engine drops it."""
        ...

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        """Do something later."""
        ...


class Admission(Protocol):
    """What a world asks of whoever decides. Times are seconds of the world."""

    @property
    def queued(self) -> int:
        """Requests held back now."""
        ...

    def start(self, world: Ways, replicas: Sequence[ReplicaSpec]) -> None:
        """The world begins."""
        ...

    def arrive(self, request: SimRequest, deadline_s: float) -> None:
        """A request asks for a place."""
        ...

    def observe(self, sample: ReplicaSample) -> None:
        """One scrape arrived; ``sample.sampled_s`` is when it was true."""
        ...

    def progress(self, request_id: str, output_tokens: int) -> None:
        """A streamed token came through."""
        ...

    def ended(self, request_id: str, output_tokens: int, *, natural: bool) -> None:
        """A forwarded request ended; ``natural`` when its model chose to."""
        ...


class AllReachTheirCaps(SurvivalModel):
    """Nobody ends before his cap: with true lengths as caps, the future itself."""

    def rates(self, running: Iterable[Running]) -> tuple[FloatArray, FloatArray]:
        """No hazard and no doubt about it."""
        hazards, doubts = super().rates(running)
        return np.zeros_like(hazards), np.zeros_like(doubts)


class GateAdmission:
    """Drives one gate.

    ``decisions_ns`` are what the gate's calls for arrivals cost, in nanoseconds of CPU: the one thing here that
    differs from run to run, and nothing depends on it. ``spared`` are requests that are not shed before their deadline
    (``sim.counterfactual``).
    """

    def __init__(
        self, policy: Policy, *, oracle: bool = False, spared: frozenset[str] = frozenset(), begun_s: float = 0.0
    ) -> None:
        self.gate = Gate(policy, begun_s)
        self.gate.shedding.spared = spared
        self.decisions_ns: list[int] = []
        self._oracle = oracle
        self._begin: tuple[float, Learned | None] | None = None
        if oracle:
            self.gate.fleet.model = AllReachTheirCaps()
        self._leases: dict[str, Lease] = {}
        self._tick_s = float("inf")

    @property
    def queued(self) -> int:
        """Requests held by the gate."""
        return len(self.gate.queue)

    def start(self, world: Ways, replicas: Sequence[ReplicaSpec]) -> None:
        """Tell the gate of the replicas."""
        self._world = world
        for spec in replicas:
            self._feed(ReplicaFound(spec))
        if self._begin is not None:
            begin_s, learned = self._begin
            self.gate.mode = Mode.OFF if begin_s > 0.0 else self.gate.mode
            world.at(begin_s, lambda: self._begun(learned))

    def begin(self, at_s: float, learned: Learned | None) -> None:
        """Before ``start``: decide from ``at_s`` on, knowing what was ``learned``, and forward whatever comes until then."""
        self._begin = at_s, learned

    def _begun(self, learned: Learned | None) -> None:
        self.gate.mode = self.gate.policy.mode
        if learned is not None:
            resume(self.gate, learned, MODEL, self._world.now_s)

    def arrive(self, request: SimRequest, deadline_s: float) -> None:
        """Hand the request to the gate."""
        demand = self.demand(request, deadline_s)
        begun = thread_time_ns()
        effects = self.gate.handle(Arrive(demand, request.streaming), self._world.now_s)
        self.decisions_ns.append(thread_time_ns() - begun)
        self._carry_out(effects)

    def demand(self, request: SimRequest, deadline_s: float) -> Demand:
        """What serving would know of the request; the true length only for the oracle."""
        return Demand(
            request_id=request.request_id,
            parts=(PromptPart(request.prompt_tokens, request.block_hashes),),
            length_class=LengthClass(MODEL, request.tenant, request.tools),
            arrived_s=self._world.now_s,
            deadline_s=deadline_s,
            output_tokens_max=request.length if self._oracle else request.output_tokens_max,
            traffic_class=request.traffic_class,
            tenant=request.tenant,
            tenant_weight=request.weight,
            priority=request.priority,
            fingerprint=crc32(request.request_id.partition(AGAIN)[0].encode()),  # whoever returns sends the same body
            ttft_s=request.ttft_s,
            tpot_s=request.tpot_s,
            session=request.session or "",
        )

    def observe(self, sample: ReplicaSample) -> None:
        """Hand the scrape to the gate."""
        self._feed(Observed(sample))

    def progress(self, request_id: str, output_tokens: int) -> None:
        """Write the stream's progress where the relay writes it."""
        lease = self._leases.get(request_id)
        if lease is not None and lease.streaming:
            if not lease.placed:
                lease.placed, lease.placed_s = True, self._world.now_s
            lease.output_tokens = output_tokens

    def ended(self, request_id: str, output_tokens: int, *, natural: bool) -> None:
        """End the request's lease."""
        if self._leases.pop(request_id, None) is not None:
            learned = natural and not self._oracle
            self._feed(Finished(request_id, Outcome.COMPLETED, output_tokens, learned))

    def die(self) -> None:
        """It is gone with all it knows: no Tick comes any more."""
        self._tick_s = float("-inf")

    def _feed(self, event: Event) -> None:
        self._carry_out(self.gate.handle(event, self._world.now_s))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reserve():
                    self._reserve(effect)
                case Forward(request_id, lease):
                    self._leases[request_id] = lease
                    self._world.forward(request_id, lease.replica)
                case Shed(request_id, refusal):
                    self._world.shed(request_id, refusal.outcome, refusal.retry_after_s)
                case _:
                    pass
        self._set_timer()

    def _reserve(self, effect: Reserve) -> None:
        """Nobody else is there who could take the place."""
        self._feed(Granted(effect.request_id))

    def _set_timer(self) -> None:
        due_s = self.gate.deadline_s_next(self._world.now_s)
        if due_s < self._tick_s:
            self._tick_s = due_s

            def tick() -> None:
                if self._tick_s == due_s:  # else an earlier one came in between
                    self._tick_s = float("inf")
                    self._feed(Tick())

            self._world.at(due_s, tick)


class PlainForwarding:
    """Every request goes on at once, to each replica in turn: what clients get without a proxy that thinks."""

    queued = 0

    def start(self, world: Ways, replicas: Sequence[ReplicaSpec]) -> None:
        """Remember the replicas."""
        self._world = world
        self._replicas = [spec.name for spec in replicas]
        self._turn = count()

    def arrive(self, request: SimRequest, deadline_s: float) -> None:
        """Forward it."""
        del deadline_s
        self._world.forward(request.request_id, self._replicas[next(self._turn) % len(self._replicas)])

    def observe(self, sample: ReplicaSample) -> None:
        """It does not look."""

    def progress(self, request_id: str, output_tokens: int) -> None:
        """It does not look."""

    def ended(self, request_id: str, output_tokens: int, *, natural: bool) -> None:
        """It does not look."""
