"""Several proxies before the same replicas, in virtual time: each a gate of its own, over one store or sharing nothing.

Clients are spread over the proxies that live, in turn, as a balancer in front of them would. Each proxy has a clock of its own. One that
dies takes with it what waits there and what is forwarded through it: the engine sees the connections close. What it had in the store is
nobody's until its lease is over. It comes back as a new process that knows nothing.

Decides nothing: what the gates are told and asked is in ``sim.shared_proxy``, what the store says in ``core.shared_ledger``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

from proxy.core.outcome import Outcome
from proxy.core.policy import Policy
from proxy.core.replica import ReplicaSample, ReplicaSpec
from proxy.sim.admission import GateAdmission, Ways
from proxy.sim.shared_proxy import SharedProxy
from proxy.sim.shared_store import SharedStore
from proxy.sim.sim_request import SimRequest
from proxy.sim.store import StoreSettings


class OwnClock:
    """A world by the clock of one of its proxies, ``ahead_s`` ahead of it."""

    def __init__(self, world: Ways, ahead_s: float, left: Callable[[str], object]) -> None:
        self._world = world
        self._left = left
        self.ahead_s = ahead_s
        self.forward = world.forward
        self.cut = world.cut

    @property
    def now_s(self) -> float:
        """The proxy's time."""
        return self._world.now_s + self.ahead_s

    def shed(self, request_id: str, outcome: Outcome, retry_after_s: float | None) -> None:
        """Answer a request without forwarding it, which leaves it to nobody."""
        self._left(request_id)
        self._world.shed(request_id, outcome, retry_after_s)

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        """Do something at a time of the proxy's."""
        self._world.at(at_s - self.ahead_s, action)


class Proxies:
    """``count`` gates. With ``store`` None each sees the others as traffic that bypasses it."""

    def __init__(
        self, policy: Policy, proxies: int, *, store: StoreSettings | None = None, oracle: bool = False,
        spared: frozenset[str] = frozenset(), seed: int = 0,
    ) -> None:  # fmt: skip
        assert proxies >= 1, proxies
        self.cut = 0  # requests that ended with their proxy
        self.shared = None if store is None else SharedStore(policy, store, seed)
        self._policy, self._oracle, self._spared = policy, oracle, spared
        self._settings = StoreSettings() if store is None else store
        self.alive: dict[int, GateAdmission] = {}
        self._ended_ns: list[int] = []
        self._count = proxies
        self._turn = count()
        self._of: dict[str, int] = {}  # request to proxy

    @property
    def queued(self) -> int:
        """Requests held by any gate."""
        return sum(proxy.queued for proxy in self.alive.values())

    @property
    def decisions_ns(self) -> list[int]:
        """What every gate's calls for arrivals cost, those of dead ones included."""
        return self._ended_ns + [each for proxy in self.alive.values() for each in proxy.decisions_ns]

    def start(self, world: Ways, replicas: Sequence[ReplicaSpec]) -> None:
        """Start every proxy, and set the times of what befalls them."""
        self._world, self._replicas = world, replicas
        if self.shared is not None:
            self.shared.start(world)
        for index in range(self._count):
            self._begin(index)
        for span in self._settings.deaths:
            world.at(span.from_s, lambda index=span.proxy: self._die(index))  # type: ignore[misc]
            world.at(span.until_s, lambda index=span.proxy: self._begin(index))  # type: ignore[misc]

    def _begin(self, index: int) -> None:
        clock = OwnClock(self._world, index * self._settings.skew_s, self._of.pop)
        kind = GateAdmission if self.shared is None else partial(SharedProxy, index, self.shared)
        proxy = self.alive[index] = kind(self._policy, oracle=self._oracle, spared=self._spared, begun_s=clock.now_s)
        proxy.start(clock, self._replicas)

    def _die(self, index: int) -> None:
        proxy = self.alive.pop(index)
        self._ended_ns += proxy.decisions_ns
        proxy.die()
        for request_id in [request_id for request_id, owner in self._of.items() if owner == index]:
            self.cut += 1
            del self._of[request_id]
            self._world.cut(request_id)

    def proxy_of(self, request: SimRequest, living: Sequence[int]) -> int:
        """Which of the ``living`` a request comes to: the next in turn, whatever it is."""
        del request
        return living[next(self._turn) % len(living)]

    def arrive(self, request: SimRequest, deadline_s: float) -> None:
        """Hand the request to a proxy."""
        if not self.alive:
            self._world.shed(request.request_id, Outcome.UPSTREAM_FAILED, None)
            return
        index = self.proxy_of(request, sorted(self.alive))
        self._of[request.request_id] = index
        self.alive[index].arrive(request, deadline_s + index * self._settings.skew_s)

    def observe(self, sample: ReplicaSample) -> None:
        """Every proxy whose turn it is scrapes."""
        for index, proxy in list(self.alive.items()):
            ahead_s = index * self._settings.skew_s
            proxy.observe(replace(sample, sampled_s=sample.sampled_s + ahead_s) if ahead_s else sample)

    def progress(self, request_id: str, output_tokens: int) -> None:
        """A streamed token came through."""
        index = self._of.get(request_id)
        if index is not None:
            self.alive[index].progress(request_id, output_tokens)

    def ended(self, request_id: str, output_tokens: int, *, natural: bool) -> None:
        """A forwarded request ended."""
        index = self._of.pop(request_id, None)
        if index is not None:  # else it ended with its proxy
            self.alive[index].ended(request_id, output_tokens, natural=natural)
