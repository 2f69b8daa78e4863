"""Tenants with unequal numbers of clients before one proxy or several, in virtual time, and how alike they are served.

The load is that of ``tests.bench.shared_overload``: closed loops, each sending its next request when the last one was answered, or somewhat
after it was refused, to one of the proxies that it knows; more than fit, so that every tenant wants at least its share. Judged as there:
Jain's index of the KV token-time of what ended after ``warm_s``.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from proxy.core.outcome import Outcome
from proxy.core.policy import Policy
from proxy.sim.admission import GateAdmission
from proxy.sim.engine_requests import EngineSettings
from proxy.sim.fairness import jain, token_time
from proxy.sim.proxies import Proxies
from proxy.sim.returning import Returning
from proxy.sim.sim_request import SimRequest, SimResult
from proxy.sim.step_time import StepTimeModel
from proxy.sim.store import StoreSettings
from proxy.sim.world import World, WorldSettings

COUNTS = (60, 20, 40, 20, 60, 20, 40, 20)  # clients of each tenant; the first half come to one proxy each, the others to all
HIGH_CLIENTS = 8  # of a higher band, at the first proxy
BEGIN_S = 2.0  # until when proxies have heard of each other, as those that are ready have
PAUSE_S = 2.0
MAX_TOKENS = 3000
PROMPT_TOKENS = (40, 180)
OUTPUT_MEDIAN, OUTPUT_SIGMA = 5.0, 0.7  # the logarithm's: 150 tokens
HIGH = "vip"


@dataclass(frozen=True)
class Crowd:
    """One world. ``kv_blocks`` and ``replicas`` are the engines', ``speed`` 1 a GPU's; ``warm_s`` goes before what is judged."""

    proxies: int = 4
    seed: int = 0
    counts: tuple[int, ...] = COUNTS
    high_clients: int = HIGH_CLIENTS
    replicas: int = 4
    kv_blocks: int = 512
    speed: float = 0.25
    warm_s: float = 30.0
    seconds: float = 80.0
    wait_s_max: float = 30.0
    store: StoreSettings = field(default_factory=lambda: StoreSettings(delay_s=0.002))

    def known(self, tenant: str) -> tuple[int, ...]:
        """The proxies that its clients know."""
        if tenant == HIGH:
            return (0,)
        index = int(tenant.removeprefix("tenant"))
        return (index % self.proxies,) if index < len(self.counts) // 2 else tuple(range(self.proxies))


class Clients(Returning):
    """Source and way back of the closed loops."""

    def __init__(self, crowd: Crowd) -> None:
        super().__init__(crowd.seed)
        self._sent: Counter[str] = Counter()
        self._random: dict[str, random.Random] = {}
        self.proxy_of: dict[str, int] = {}  # of each request
        self._crowd = crowd
        counts = {f"tenant{index}": count for index, count in enumerate(crowd.counts)} | {HIGH: crowd.high_clients}
        names = [(tenant, f"{tenant}.{number}") for tenant, count in counts.items() for number in range(count)]
        self._random = {name: random.Random(f"{crowd.seed} {name}") for _, name in names}
        first = [self._request(tenant, name, BEGIN_S + self._random[name].random()) for tenant, name in names]
        self._first = iter(sorted(first, key=lambda one: one.arrival_s))

    def _request(self, tenant: str, client: str, at_s: float) -> SimRequest:
        rng = self._random[client]
        self._sent[client] += 1
        request_id = f"{client}.{self._sent[client]}"
        self.proxy_of[request_id] = rng.choice(self._crowd.known(tenant))
        length = max(1, round(rng.lognormvariate(OUTPUT_MEDIAN, OUTPUT_SIGMA)))
        return SimRequest(
            request_id, rng.randint(*PROMPT_TOKENS), min(length, MAX_TOKENS), MAX_TOKENS, at_s, tenant, int(tenant == HIGH),
            streaming=rng.random() < 0.25,
        )  # fmt: skip

    def next_request(self, now_s: float) -> SimRequest | None:
        """The first of each client."""
        del now_s
        return next(self._first, None)

    def follow_up(self, request: SimRequest, now_s: float) -> SimRequest | None:
        """The next of the same client."""
        return self._request(request.tenant, request.request_id.rpartition(".")[0], now_s)

    def again(self, result: SimResult, now_s: float) -> SimRequest | None:
        """Another of the client, after a pause."""
        return self.follow_up(result.request, now_s + PAUSE_S)


class Spread(Proxies):
    """Proxies to which every client comes as it likes."""

    def __init__(self, clients: Clients, crowd: Crowd, policy: Policy) -> None:
        super().__init__(policy, crowd.proxies, store=crowd.store, seed=crowd.seed)
        self._clients = clients

    def proxy_of(self, request: SimRequest, living: Sequence[int]) -> int:
        """Where its client sent it."""
        index = self._clients.proxy_of[request.request_id]
        assert index in living, index
        return index


@dataclass
class Served:
    """What became of them while it was judged, by tenant of the low band; ``goodput`` is output tokens of answers a second."""

    token_time: dict[str, float]
    requests: Counter[str]
    refused: Counter[str]
    goodput: float
    preemptions: int
    world: World

    @property
    def jain(self) -> float:
        """Of their token-time."""
        return jain(self.token_time.values())

    @property
    def shares(self) -> dict[str, float]:
        """Of an equal share."""
        equal = sum(self.token_time.values()) / len(self.token_time)
        return {tenant: value / equal for tenant, value in self.token_time.items()}


def world_of(crowd: Crowd, policy: Policy | None = None) -> World:
    """Not run yet."""
    clients, policy = Clients(crowd), Policy() if policy is None else policy
    admission = GateAdmission(policy) if crowd.proxies == 1 else Spread(clients, crowd, policy)
    engine = EngineSettings(num_gpu_blocks=crowd.kv_blocks + 1, block_size=16, max_model_len=4096)
    settings = WorldSettings(
        replicas=crowd.replicas, engine=engine, step_time=StepTimeModel(speed=crowd.speed), wait_s_max=crowd.wait_s_max,
        until_s=crowd.warm_s + crowd.seconds, scrape_s=policy.scrape.interval_s,
    )  # fmt: skip
    return World(settings, admission, clients, clients)


def judged(crowd: Crowd, world: World) -> Served:
    """What became of those that ended after ``warm_s`` in a world that was run."""
    took = {f"tenant{index}": 0.0 for index in range(len(crowd.counts))}
    requests: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    tokens = 0
    for result in world.results.values():
        if result.end_s is None or result.end_s < crowd.warm_s:
            continue
        requests[result.request.tenant] += 1
        if result.outcome is not Outcome.COMPLETED:
            refused[result.request.tenant] += 1
            continue
        tokens += result.output_tokens
        if result.request.tenant in took:
            took[result.request.tenant] += token_time(result)
    return Served(took, requests, refused, tokens / crowd.seconds, sum(one.preemptions for one in world.counters), world)


def served(crowd: Crowd, policy: Policy | None = None) -> Served:
    """Play it."""
    return judged(crowd, world_of(crowd, policy).run())
