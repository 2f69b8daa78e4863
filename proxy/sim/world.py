"""A world in virtual time: clients, engines and metrics. Whoever decides is an ``Admission`` (``sim.admission``).

Decides nothing about admission: it lets requests arrive, steps the engines, lets scrapes and tokens travel, and keeps the books.
Clients are open (arrivals have times) or closed (``concurrency`` of them, each sending its next request when the last one ended). A
scrape is taken every ``scrape_s`` and arrives ``metrics_age_s`` later; ``metrics_gone_s`` is a time without any. A share of the
requests (``bypass_ratio``) goes straight to the engines, past the admission. What else may go wrong is in ``sim.faults``.

Deterministic: equal inputs give equal results. Fails: prefill of one replica never slows the network, and clients never cancel.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count, repeat
from typing import Protocol

from proxy.core.outcome import Outcome
from proxy.core.replica import ReplicaSpec
from proxy.sim.admission import MODEL, Admission
from proxy.sim.engine import Engine
from proxy.sim.engine_requests import EngineCounters, EngineRequest, EngineSettings, FinishReason
from proxy.sim.faults import Faults, Feed
from proxy.sim.returning import Returning, original
from proxy.sim.sim_request import SimRequest, SimResult
from proxy.sim.step_time import StepTimeModel
from proxy.sim.usage import Usage


class Source(Protocol):
    """Where requests come from."""

    def next_request(self, now_s: float) -> SimRequest | None:
        """The next request, None when there are no more. Open clients send it at its ``arrival_s``, closed ones at once."""
        ...

    def follow_up(self, request: SimRequest, now_s: float) -> SimRequest | None:
        """What the client sends because ``request`` was answered just now, at its ``arrival_s``."""
        ...


class Listed:
    """A fixed list of requests, nothing following from any."""

    def __init__(self, requests: Iterable[SimRequest]) -> None:
        self._requests = iter(requests)

    def next_request(self, now_s: float) -> SimRequest | None:
        """The next of the list."""
        del now_s
        return next(self._requests, None)

    def follow_up(self, request: SimRequest, now_s: float) -> SimRequest | None:
        """Nothing follows."""
        del request, now_s
        return None


@dataclass(frozen=True, slots=True)
class WorldSettings:
    """The world's constants. ``network_s`` is one way between proxy and replica; ``until_s`` ends it whatever is open."""

    replicas: int = 1
    engine: EngineSettings = field(default_factory=lambda: EngineSettings(num_gpu_blocks=256, block_size=32, max_model_len=4096))
    step_time: StepTimeModel = field(default_factory=StepTimeModel)
    scrape_s: float = 0.5
    scrapes_first_s: tuple[float, ...] = ()  # by replica; none: after one interval
    shown_after_step: bool = False  # metrics show a step when it is done, as an engine's do, not while it is under way
    metrics_age_s: float = 0.0
    metrics_gone_s: tuple[float, float] = (float("inf"), float("inf"))
    network_s: float = 0.001
    concurrency: int | None = None
    bypass_ratio: float = 0.0
    seats_told: bool = True  # whether the gate knows how many sequences an engine runs, or has to learn it
    wait_s_max: float = 1e9
    until_s: float = 1e7
    faults: Faults = field(default_factory=Faults)


class World:
    """Runs a workload to its end."""

    def __init__(self, settings: WorldSettings, admission: Admission, source: Source, returning: Returning | None = None) -> None:
        self.settings = settings
        self.now_s = 0.0
        self.admission = admission
        self.engines = {f"r{index}": Engine(settings.engine) for index in range(settings.replicas)}
        self.results: dict[str, SimResult] = {}
        self.usage = Usage()
        self.counters_before: list[EngineCounters] = []  # of engines that restarted
        self._feeds = {name: Feed(name, settings.faults, after_step=settings.shown_after_step) for name in self.engines}
        self.dry_s: float | None = None  # when the source had no more requests: until then it was as busy as it should be
        self.dry_tokens = 0
        self._live: dict[str, SimResult] = {}
        self._arrived = 0
        self._stepping: set[str] = set()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()
        self._turn = count()
        self._source = source
        self._returning = returning
        self._open = 0
        self._expected = 0  # requests that will arrive at a known time
        admission.start(self, [self._spec(name) for name in self.engines])
        for at_s in settings.faults.restarts_s:
            self.at(at_s, self._restart)
        for name, first_s in zip(self.engines, settings.scrapes_first_s or repeat(settings.scrape_s), strict=False):
            self.at(first_s, lambda name=name: self._scrape(name))  # type: ignore[misc]

    def _spec(self, name: str) -> ReplicaSpec:
        engine = self.settings.engine
        return ReplicaSpec(
            name, (MODEL,), engine.num_gpu_blocks - 1, engine.block_size, engine.max_model_len,
            engine.max_num_seqs if self.settings.seats_told else None,
        )  # fmt: skip

    def run(self) -> "World":
        """Go on until every request has ended, or ``until_s``."""
        if self.settings.concurrency is None:
            self._next_open()
        else:
            for index in range(self.settings.concurrency):
                # Clients of a closed loop do not all send in the same microsecond; a millisecond apart is what an event loop does.
                self._next_closed(0.001 * (index + 1))
        while self._heap and (self._open or self._expected):
            at_s, _, action = heapq.heappop(self._heap)
            if at_s > self.settings.until_s:
                break
            self.now_s = max(self.now_s, at_s)
            action()
        return self

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        """Do something at a time of this world."""
        heapq.heappush(self._heap, (at_s, next(self._serial), action))

    # ---- clients

    def _next(self) -> SimRequest | None:
        request = self._source.next_request(self.now_s)
        if request is None and self.dry_s is None:
            self.dry_s, self.dry_tokens = self.now_s, self.tokens
        return request

    def _next_open(self) -> None:
        request = self._next()
        if request is not None:
            self._expect(request, max(self.now_s, request.arrival_s), self._next_open)

    def _next_closed(self, delay_s: float = 0.001) -> None:
        request = self._next()
        if request is not None:
            self._expect(request, self.now_s + delay_s)

    def _expect(self, request: SimRequest, at_s: float, then: Callable[[], None] | None = None) -> None:
        self._expected += 1

        def arrive() -> None:
            self._expected -= 1
            self._open += 1
            self._arrive(request)
            if then is not None:
                then()

        self.at(at_s, arrive)

    def _arrive(self, request: SimRequest) -> None:
        assert request.request_id not in self.results, f"request id {request.request_id!r} came twice"
        result = self.results[request.request_id] = SimResult(request, self.now_s)
        self._live[request.request_id] = result
        self._arrived += 1
        ratio = self.settings.bypass_ratio
        if int(self._arrived * ratio) > int((self._arrived - 1) * ratio):
            result.bypassed = True
            names = list(self.engines)
            self.forward(request.request_id, names[next(self._turn) % len(names)])
            return
        wait_s = self.settings.wait_s_max if request.wait_s_max is None else request.wait_s_max
        self.admission.arrive(request, self.now_s + wait_s)

    def _ended(self, request_id: str, outcome: Outcome, *, natural: bool) -> None:
        result = self._live.pop(request_id)
        result.outcome, result.end_s = outcome, self.now_s
        self._open -= 1
        if result.forwarded_s is not None and not result.bypassed:
            self.admission.ended(request_id, result.output_tokens, natural=natural)
        following = self._following(result)
        if following is not None:
            self._expect(following, max(self.now_s, following.arrival_s))
        elif self.settings.concurrency is not None:
            self._next_closed()

    def _following(self, result: SimResult) -> SimRequest | None:
        """What the client sends next: what follows from an answer, or the same again where it was told to come back."""
        if result.outcome is Outcome.COMPLETED:
            return self._source.follow_up(original(result.request), self.now_s)
        return None if self._returning is None else self._returning.again(result, self.now_s)

    # ---- what an admission can do

    def forward(self, request_id: str, replica: str) -> None:
        """Send a request on; it arrives there a moment later."""
        result = self._live[request_id]
        result.forwarded_s, result.replica = self.now_s, replica
        request = result.request

        def deliver() -> None:
            if request_id not in self._live:
                return  # it was cut on its way
            self.engines[replica].add(
                EngineRequest(
                    request_id, request.prompt_tokens, request.output_tokens, request.output_tokens_max, request.block_hashes,
                    request.priority, self.now_s, hash_block=request.hash_block if request.output_hashes else None,
                )
            )  # fmt: skip
            self._wake(replica)

        self.at(self.now_s + self.settings.network_s, deliver)

    def shed(self, request_id: str, outcome: Outcome, retry_after_s: float | None) -> None:
        """Answer a request without forwarding it."""
        self._live[request_id].retry_after_s = retry_after_s
        self._ended(request_id, outcome, natural=False)

    def cut(self, request_id: str) -> None:
        """Its proxy died: the client gets no more of its answer, and the engine sees the connection go and drops it."""
        replica = self._live[request_id].replica
        if replica is not None and self.engines[replica].abort(request_id):
            self._wake(replica)
        self._ended(request_id, Outcome.CUT_OFF, natural=False)

    # ---- metrics

    def _scrape(self, name: str) -> None:
        settings, sampled_s, engine = self.settings, self.now_s, self.engines[name]
        if settings.metrics_gone_s[0] <= sampled_s < settings.metrics_gone_s[1] or settings.faults.down(sampled_s):
            self._feeds[name].failed()
        else:
            sample = self._feeds[name].sample(engine.gauges, engine.counters, sampled_s, age_s=settings.metrics_age_s)
            self.at(sampled_s + settings.metrics_age_s, lambda: self.admission.observe(sample))
        self.at(sampled_s + settings.scrape_s, lambda: self._scrape(name))

    # ---- engines

    @property
    def counters(self) -> list[EngineCounters]:
        """Of all engines, those that are over included."""
        return self.counters_before + [engine.counters for engine in self.engines.values()]

    @property
    def tokens(self) -> int:
        """Output tokens generated so far."""
        return sum(counters.generation_tokens for counters in self.counters)

    def _restart(self) -> None:
        """Every engine loses what it holds and comes back empty; its requests are lost."""
        lost = [name for name in self._live if any(name in engine for engine in self.engines.values())]
        self.counters_before += [engine.counters for engine in self.engines.values()]
        self.engines = {name: Engine(self.settings.engine) for name in self.engines}
        self._stepping.clear()

        def tell() -> None:
            for request_id in filter(self._live.__contains__, lost):
                self._ended(request_id, Outcome.UPSTREAM_FAILED, natural=False)

        self.at(self.now_s + self.settings.faults.lost_s, tell)
        for name in self.engines:
            self.at(self.now_s + self.settings.faults.down_s, lambda name=name: self._wake(name))  # type: ignore[misc]

    def _wake(self, name: str) -> None:
        engine = self.engines[name]
        if name in self._stepping or not engine.has_work or self.settings.faults.down(self.now_s):
            return
        self._stepping.add(name)
        report = engine.step()
        duration_s = self.settings.step_time.seconds(report)
        self.usage.add(name, self.now_s, duration_s, report.used_blocks / engine.usable_blocks, queued=self.admission.queued)

        def done() -> None:
            if engine is not self.engines[name]:
                return  # the engine died in the middle of it
            self._stepping.discard(name)
            self._feeds[name].stepped(engine.gauges, engine.counters)
            self._tokens(report.sampled, report.finished)
            self._wake(name)

        self.at(self.now_s + duration_s, done)

    def _tokens(self, sampled: Iterable[str], finished: Iterable[tuple[str, FinishReason]]) -> None:
        progress, live = self.admission.progress, self._live
        for request_id in sampled:
            result = live.get(request_id)
            if result is None:
                continue  # it was cut while the engine computed
            result.output_tokens += 1
            if result.first_s is None:
                result.first_s = self.now_s
            progress(request_id, result.output_tokens)
        for request_id, reason in finished:
            if request_id in live:
                self._ended(request_id, Outcome.COMPLETED, natural=reason is FinishReason.STOP)
