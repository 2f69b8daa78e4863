"""The simulated driver: the same gate as in serving, over engine models, in virtual time.

Decides nothing about admission: it hands the gate its events and carries out its effects, with the delays a network and a scrape have.
Clients are open (arrivals have times) or closed (``concurrency`` of them, each sending its next request when the last one ended).
``gated=False`` sends every request straight to a replica, round robin: plain forwarding.

Deterministic: equal inputs give equal results. Fails: prefill of one replica never slows the network, and clients never cancel.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from proxy.core.book import ReplicaSpec
from proxy.core.demand import Demand, LengthClass, PromptPart
from proxy.core.events import Arrive, Effect, Finished, Forward, Granted, Observed, ReplicaFound, Reserve, Shed, Tick
from proxy.core.gate import Gate
from proxy.core.ledger import Lease
from proxy.core.outcome import Outcome
from proxy.core.policy import Policy
from proxy.core.replica import EngineSample, ReplicaSample
from proxy.sim.engine import Engine
from proxy.sim.engine_requests import EngineRequest, EngineSettings, FinishReason
from proxy.sim.sim_request import SimRequest, SimResult
from proxy.sim.step_time import StepTimeModel

MODEL = "m"


@dataclass(frozen=True, slots=True)
class WorldSettings:
    """The world's constants. ``network_s`` is one way between proxy and replica."""

    replicas: int = 1
    engine: EngineSettings = field(default_factory=lambda: EngineSettings(num_gpu_blocks=256, block_size=32, max_model_len=4096))
    step_time: StepTimeModel = field(default_factory=StepTimeModel)
    scrape_s: float = 0.5
    network_s: float = 0.001
    concurrency: int | None = None
    gated: bool = True
    wait_s_max: float = 1e9
    until_s: float = 1e7


class World:
    """Runs a workload to its end."""

    def __init__(self, settings: WorldSettings, policy: Policy, workload: Iterable[SimRequest]) -> None:
        self.settings = settings
        self.now_s = 0.0
        self.engines = {f"r{index}": Engine(settings.engine) for index in range(settings.replicas)}
        self.gate = Gate(policy, 0.0)
        self.results: dict[str, SimResult] = {}
        self.usage_ratios: list[float] = []
        self.usage_ratios_queued: list[float] = []
        self._leases: dict[str, Lease] = {}
        self._stepping: set[str] = set()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()
        self._turn = count()
        self._workload: Iterator[SimRequest] = iter(workload)
        self._open = 0
        self._tick_s = float("inf")
        for name in self.engines:
            spec = ReplicaSpec(
                name, (MODEL,), settings.engine.num_gpu_blocks - 1, settings.engine.block_size, settings.engine.max_model_len,
                settings.engine.max_num_seqs,
            )  # fmt: skip
            self._handle(self.gate.handle(ReplicaFound(spec), 0.0))
            self._at(settings.scrape_s, lambda name=name: self._scrape(name))  # type: ignore[misc]

    def run(self) -> "World":
        """Go on until every request has ended."""
        self._start_clients()
        while self._heap and (self._open or self._waiting_arrivals()):
            at_s, _, action = heapq.heappop(self._heap)
            self.now_s = max(self.now_s, at_s)
            if self.now_s > self.settings.until_s:
                break
            action()
        return self

    def _waiting_arrivals(self) -> bool:
        return self.settings.concurrency is None and self._more

    def _at(self, at_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (at_s, next(self._serial), action))

    # ---- clients

    def _start_clients(self) -> None:
        self._more = True
        if self.settings.concurrency is None:
            self._next_open()
        else:
            for _ in range(self.settings.concurrency):
                self._next_closed()

    def _next_open(self) -> None:
        request = next(self._workload, None)
        self._more = request is not None
        if request is not None:

            def arrive() -> None:
                self._send(request)
                self._next_open()

            self._at(request.arrival_s, arrive)

    def _next_closed(self) -> None:
        request = next(self._workload, None)
        if request is not None:
            # Clients of a closed loop do not all send in the same microsecond; a millisecond apart is what an event loop does.
            self._open += 1
            delay = 0.001 * (self._open if self.now_s == 0.0 else 1)
            self._at(self.now_s + delay, lambda: self._arrive(request))

    def _send(self, request: SimRequest) -> None:
        self._open += 1
        self._arrive(request)

    def _arrive(self, request: SimRequest) -> None:
        self.results[request.request_id] = SimResult(request, self.now_s)
        if not self.settings.gated:
            names = list(self.engines)
            self._deliver(request, names[next(self._turn) % len(names)])
            return
        demand = Demand(
            request_id=request.request_id,
            parts=(PromptPart(request.prompt_tokens, request.block_hashes),),
            length_class=LengthClass(MODEL),
            arrived_s=self.now_s,
            deadline_s=self.now_s + self.settings.wait_s_max,
            output_tokens_max=request.output_tokens_max,
            tenant=request.tenant,
            priority=request.priority,
        )
        self._handle(self.gate.handle(Arrive(demand, request.streaming), self.now_s))

    def _ended(self, request_id: str, outcome: Outcome, *, natural: bool) -> None:
        result = self.results[request_id]
        result.outcome, result.end_s = outcome, self.now_s
        self._open -= 1
        if self.settings.gated and self._leases.pop(request_id, None) is not None:
            done = Finished(request_id, outcome, result.output_tokens, natural)
            self._handle(self.gate.handle(done, self.now_s))
        if self.settings.concurrency is not None:
            self._next_closed()

    # ---- gate

    def _handle(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reserve(request_id, _):
                    self._handle(self.gate.handle(Granted(request_id), self.now_s))
                case Forward(request_id, lease):
                    self._leases[request_id] = lease
                    self._deliver(self.results[request_id].request, lease.replica)
                case Shed(request_id, refusal):
                    self._ended(request_id, refusal.outcome, natural=False)
                case _:
                    pass
        due_s = self.gate.deadline_s_next(self.now_s)
        if due_s < self._tick_s:
            self._tick_s = due_s
            self._at(due_s, self._tick)

    def _tick(self) -> None:
        self._tick_s = float("inf")
        self._handle(self.gate.handle(Tick(), self.now_s))

    def _scrape(self, name: str) -> None:
        engine = self.engines[name]
        gauges, counters = engine.gauges, engine.counters
        sample = EngineSample(
            engine="0",
            kv_usage_ratio=gauges.usage_ratio,
            running=gauges.running,
            waiting=gauges.waiting,
            preemptions_total=counters.preemptions_exposed,
            prompt_tokens_total=counters.prompt_tokens,
            generation_tokens_total=counters.generation_tokens,
        )
        self._handle(self.gate.handle(Observed(ReplicaSample(name, self.now_s, (sample,))), self.now_s))
        self._at(self.now_s + self.settings.scrape_s, lambda: self._scrape(name))

    # ---- engines

    def _deliver(self, request: SimRequest, name: str) -> None:
        def arrive() -> None:
            self.engines[name].add(
                EngineRequest(
                    request.request_id, request.prompt_tokens, request.output_tokens, request.output_tokens_max,
                    request.block_hashes, request.priority, self.now_s,
                )
            )  # fmt: skip
            self._wake(name)

        self._at(self.now_s + self.settings.network_s, arrive)

    def _wake(self, name: str) -> None:
        engine = self.engines[name]
        if name in self._stepping or not engine.has_work:
            return
        self._stepping.add(name)
        report = engine.step()
        self.usage_ratios.append(report.used_blocks / engine.usable_blocks)
        if len(self.gate.queue):
            self.usage_ratios_queued.append(self.usage_ratios[-1])
        duration_s = self.settings.step_time.seconds(report)

        def done() -> None:
            self._stepping.discard(name)
            self._tokens(report.sampled, report.finished)
            self._wake(name)

        self._at(self.now_s + duration_s, done)

    def _tokens(self, sampled: Iterable[str], finished: Iterable[tuple[str, FinishReason]]) -> None:
        for request_id in sampled:
            result = self.results[request_id]
            result.output_tokens += 1
            if result.first_s is None:
                result.first_s = self.now_s
            lease = self._leases.get(request_id)
            if lease is not None and lease.streaming:
                lease.output_tokens += 1
                lease.placed = True
        for request_id, reason in finished:
            self._ended(request_id, Outcome.COMPLETED, natural=reason is FinishReason.STOP)

    def summary(self) -> dict[str, float]:
        """Figures of the whole run."""
        done = [one for one in self.results.values() if one.outcome is Outcome.COMPLETED]
        ttft = [one.first_s - one.arrived_s for one in done if one.first_s is not None]
        tpot = [
            (one.end_s - one.first_s) / (one.output_tokens - 1)
            for one in done
            if one.first_s is not None and one.end_s is not None and one.output_tokens > 1
        ]
        preemptions = sum(engine.counters.preemptions for engine in self.engines.values())
        tokens = sum(one.output_tokens for one in done)
        return {
            "completed": len(done),
            "shed": sum(one.outcome is not Outcome.COMPLETED for one in self.results.values()),
            "preemptions": preemptions,
            "elapsed_s": self.now_s,
            "tokens_per_s": tokens / max(self.now_s, 1e-9),
            "ttft_s_p50": float(np.percentile(ttft, 50)) if ttft else 0.0,
            "ttft_s_p99": float(np.percentile(ttft, 99)) if ttft else 0.0,
            "tpot_ms_p99": 1000.0 * float(np.percentile(tpot, 99)) if tpot else 0.0,
            "kv_usage_ratio_mean": float(np.mean(self.usage_ratios)) if self.usage_ratios else 0.0,
            "kv_usage_ratio_mean_while_queued": float(np.mean(self.usage_ratios_queued)) if self.usage_ratios_queued else 0.0,
        }
