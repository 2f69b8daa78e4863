"""One question to the simulator: which workload, on which engines, at which load; and one policy's answer to it.

Load is in shares of the fluid capacity (``sim.fluid``). A finite load is an open loop: requests arrive whatever becomes of the others, each
may wait until its TTFT target, and the run ends when the pool has drained. An infinite load is a closed loop of so many clients that
somebody always waits, without deadlines: what the pool can do, not what clients would bear.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, inf, isinf

from proxy.core.policy import Policy
from proxy.sim.admission import Admission, GateAdmission
from proxy.sim.baselines import make_baseline
from proxy.sim.counterfactual import Replay, judge_shedding, with_shedding
from proxy.sim.engine_requests import EngineSettings
from proxy.sim.figures import Figures, Targets, figures_of
from proxy.sim.fluid import Fluid, capacity_requests_per_s, fluid_bound
from proxy.sim.proxies import Proxies
from proxy.sim.replay import Replayed, policy_of, replayed_figures, scrapes_of
from proxy.sim.sim_request import SimRequest
from proxy.sim.step_time import StepTimeModel
from proxy.sim.store import StoreSettings
from proxy.sim.workloads import ClosedLoop, OpenLoop, Workload, load_workload
from proxy.sim.workloads.recording import Recording
from proxy.sim.world import Source, World, WorldSettings

KVGATE, ORACLE, FLUID = "kvgate", "oracle", "fluid"
REQUESTS_DEFAULT = 2000
LOAD_DEFAULT = 1.3
# Workloads that are a course of events last as long as it takes: two rounds of both phases; the surge ends its arrivals by itself.
DURATION_S = {"shift": 2400.0, "surge": 4500.0}
CLIENTS_PER_SEQUENCE = 1.5  # of a saturating closed loop, beyond those that fit on average
CONTEXT_TOKENS_MIN = 4096
PROGRESS_REQUESTS = 100
REPLAY_AFTER_SCRAPES = 2.5  # before the first recorded request: at a proxy that has been there, its replicas are known


@dataclass(frozen=True)
class Scenario:
    """Everything that two runs must agree on to be comparable. ``workload`` is a generator's name or a file's path."""

    workload: str = "chat"
    seed: int = 1
    replicas: int = 1
    proxies: int = 1
    store: StoreSettings = field(default_factory=StoreSettings)  # shared by the proxies where there are several
    kv_blocks: int = 4000
    block_size: int = 16
    context_tokens: int | None = None  # None: what the workload takes
    sequences_max: int | None = None  # None: vLLM's default
    metrics_age_s: float = 0.0
    load: float | None = None
    requests: int | None = None
    bypass_ratio: float = 0.0
    shed_sample: int = 0  # refused requests that are judged, at the cost of one more run each
    metrics_gone_s: tuple[float, float] = (inf, inf)
    step_time: StepTimeModel = field(default_factory=StepTimeModel)
    targets: Targets = field(default_factory=Targets)
    policy: Policy = field(default_factory=Policy)

    @cached_property
    def source(self) -> Workload:
        """The workload, loaded once. Raises ValueError for one that is not there or cannot be read."""
        return load_workload(self.workload, self.seed, block_size=self.block_size)

    @cached_property
    def engine(self) -> EngineSettings:
        """The engines: ``kv_blocks`` usable blocks each and a context that holds every request of the workload."""
        context = self.context_tokens or max(CONTEXT_TOKENS_MIN, self.source.stats.tokens_max + 1)
        engine = EngineSettings(num_gpu_blocks=self.kv_blocks + 1, block_size=self.block_size, max_model_len=context)
        return engine if self.sequences_max is None else replace(engine, max_num_seqs=self.sequences_max)

    @property
    def replay(self) -> Recording | None:
        """The recording of kvgate's that is played as it was; None for any other workload."""
        return self.source if isinstance(self.source, Recording) and self.load is None else None

    @property
    def admission_policy(self) -> Policy:
        """The policy as it is played: a recording's tenants have other names than the policy's."""
        return self.policy if self.replay is None else policy_of(self.replay.head, self.policy)

    @property
    def _replayed_from_s(self) -> float:
        return REPLAY_AFTER_SCRAPES * self.policy.scrape.interval_s

    @property
    def load_ratio(self) -> float:
        """The load asked for, else the workload's own, else the default."""
        if self.load is not None:
            return self.load
        return LOAD_DEFAULT if self.source.load_ratio is None else self.source.load_ratio

    @property
    def saturated(self) -> bool:
        """Whether clients always wait for each other."""
        return isinf(self.load_ratio)

    @property
    def fluid(self) -> Fluid:
        """What one replica can do at most."""
        return fluid_bound(self.engine, self.step_time, self.source.stats)

    @property
    def rate_per_s(self) -> float:
        """Requests per second that are offered in an open loop."""
        return self.load_ratio * capacity_requests_per_s(self.engine, self.step_time, self.source.stats, self.replicas)

    @property
    def requests_expected(self) -> int:
        """About how many requests will arrive; for progress."""
        duration_s = DURATION_S.get(self.source.name)
        if self.requests is not None:
            return self.requests
        if self.replay is not None:
            return len(self.replay.requests)
        if duration_s is None:
            return REQUESTS_DEFAULT
        capacity = capacity_requests_per_s(self.engine, self.step_time, self.source.stats, self.replicas)
        return int(duration_s * (capacity if self.saturated else self.rate_per_s))

    def clients(self) -> Source:
        """The workload as the source of one world."""
        duration_s = DURATION_S.get(self.source.name, inf)
        requests_max = self.requests if self.requests is not None or duration_s < inf else REQUESTS_DEFAULT
        fresh = load_workload(self.workload, self.seed, block_size=self.block_size)  # each world plays it from the start
        if self.saturated:
            return ClosedLoop(fresh, until_s=duration_s, requests_max=requests_max)
        if self.replay is not None:
            return Replayed(OpenLoop(fresh, requests_max=self.requests), self.admission_policy, self._replayed_from_s)
        rate_per_s = self.rate_per_s
        return Patient(OpenLoop(fresh, rate_per_s, until_s=duration_s, requests_max=requests_max), self.targets)

    def settings(self) -> WorldSettings:
        """The world of this scenario."""
        concurrency = ceil((1.0 + CLIENTS_PER_SEQUENCE) * self.replicas * self.fluid.sequences) + 8 if self.saturated else None
        scrapes: tuple[float, tuple[float, ...]] = (self.policy.scrape.interval_s, ())
        if self.replay is not None:
            scrapes = scrapes_of(self.replay, self.replicas, scrapes[0], self._replayed_from_s + self.replay.zero_s)
        return WorldSettings(
            replicas=self.replicas, engine=self.engine, step_time=self.step_time, scrape_s=scrapes[0], scrapes_first_s=scrapes[1],
            metrics_age_s=self.metrics_age_s, metrics_gone_s=self.metrics_gone_s, concurrency=concurrency,
            bypass_ratio=self.bypass_ratio, seats_told=self.replay is None or self.sequences_max is not None,
            shown_after_step=self.replay is not None,
        )  # fmt: skip

    def admission(self, name: str, spared: frozenset[str] = frozenset()) -> Admission:
        """Who decides; ``spared`` are not shed before their deadline. Raises ValueError for a name that nobody has."""
        if name in {KVGATE, ORACLE}:
            if self.proxies == 1:
                gate = GateAdmission(self.admission_policy, oracle=name == ORACLE, spared=spared)
                return gate if self.replay is None else self._from_the_beginning(gate, self.replay)
            return Proxies(
                self.admission_policy, self.proxies, store=self.store, oracle=name == ORACLE, spared=spared, seed=self.seed
            )
        return make_baseline(name, self.policy, seed=self.seed)

    def _from_the_beginning(self, admission: GateAdmission, recording: Recording) -> GateAdmission:
        """``admission`` as it stood when ``recording`` began: until then everybody gets the place he had."""
        admission.gate.shedding.promised_before = recording.early
        admission.begin(self._replayed_from_s + recording.begins_s if recording.early else 0.0, recording.head.learned)
        return admission


class Patient:
    """A source whose clients wait for their first token as long as its target and no longer."""

    def __init__(self, source: Source, targets: Targets) -> None:
        self._source = source
        self._targets = targets

    def _with_patience(self, request: SimRequest | None) -> SimRequest | None:
        if request is None or request.ttft_s is not None:
            return request
        targets = self._targets
        return replace(request, ttft_s=targets.ttft_s, tpot_s=targets.tpot_ms / 1000.0, wait_s_max=targets.ttft_s)

    def next_request(self, now_s: float) -> SimRequest | None:
        """The source's, with its patience."""
        return self._with_patience(self._source.next_request(now_s))

    def follow_up(self, request: SimRequest, now_s: float) -> SimRequest | None:
        """The source's, with its patience."""
        return self._with_patience(self._source.follow_up(request, now_s))


def build(scenario: Scenario, name: str, progress: Callable[[int], None] | None = None) -> World:
    """The world of one policy, not run yet. ``progress`` is told now and then how many requests have ended."""
    source = scenario.clients()
    if progress is not None:
        source = Counting(source, progress)
    return World(scenario.settings(), scenario.admission(name), source)


class Counting:
    """Tells how far a source got."""

    def __init__(self, source: Source, progress: Callable[[int], None]) -> None:
        self._source = source
        self._progress = progress
        self._ended = 0

    def next_request(self, now_s: float) -> SimRequest | None:
        """The source's."""
        return self._source.next_request(now_s)

    def follow_up(self, request: SimRequest, now_s: float) -> SimRequest | None:
        """The source's; called once for each request that was answered."""
        self._ended += 1
        if self._ended % PROGRESS_REQUESTS == 0:
            self._progress(self._ended)
        return self._source.follow_up(request, now_s)


def play(scenario: Scenario, name: str, progress: Callable[[int], None] | None = None) -> Figures:
    """Run one policy and read its figures. Raises ValueError for an unknown policy or workload."""
    if name == FLUID:
        return fluid_figures(scenario)
    world = build(scenario, name, progress).run()
    if not isinstance(world.admission, GateAdmission | Proxies):
        return figures_of(world, scenario.targets)
    figures = figures_of(world, scenario.targets, world.admission.decisions_ns)
    if scenario.replay is not None and isinstance(world.admission, GateAdmission):
        figures = replayed_figures(world, figures, scenario.replay)
    if not scenario.shed_sample:
        return figures
    judged = judge_shedding(world, replay_of(scenario, name), scenario.targets, sample=scenario.shed_sample, seed=scenario.seed)
    return with_shedding(figures, judged)


def replay_of(scenario: Scenario, name: str) -> Replay:
    """The scenario again, with requests that are not shed before their deadline."""

    def again(spared: frozenset[str], until_s: float) -> World:
        settings = replace(scenario.settings(), until_s=until_s)
        return World(settings, scenario.admission(name, spared), scenario.clients())

    return again


def fluid_figures(scenario: Scenario) -> Figures:
    """The bound as figures: throughput alone, everything else is not known."""
    bound = scenario.fluid
    return Figures(tokens_per_s=scenario.replicas * bound.tokens_per_s)
