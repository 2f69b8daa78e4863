"""A world without engines: it keeps what an admission does, and time moves only when a test says so."""

import heapq
from collections.abc import Callable
from itertools import count

from proxy.core.outcome import Outcome
from proxy.core.replica import EngineSample, ReplicaSample, ReplicaSpec
from proxy.sim.admission import Admission
from proxy.sim.sim_request import SimRequest


class StillWorld:
    """``Ways`` for one admission, with ``replicas`` of ``blocks`` usable blocks named r0, r1 …"""

    def __init__(
        self, admission: Admission, *, replicas: int = 1, blocks: int = 100, block_size: int = 16, context: int = 4096
    ) -> None:
        self.now_s = 0.0
        self.admission = admission
        self.forwarded: list[tuple[str, str]] = []
        self.sheds: list[tuple[str, Outcome]] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()
        admission.start(self, [ReplicaSpec(f"r{i}", ("m",), blocks, block_size, context) for i in range(replicas)])

    @property
    def gone(self) -> list[str]:
        """Ids of the requests that went on, in order."""
        return [request_id for request_id, _ in self.forwarded]

    def forward(self, request_id: str, replica: str) -> None:
        """Keep it."""
        self.forwarded.append((request_id, replica))

    def shed(self, request_id: str, outcome: Outcome, retry_after_s: float | None) -> None:
        """Keep it."""
        del retry_after_s
        self.sheds.append((request_id, outcome))

    def cut(self, request_id: str) -> None:
        """Nobody dies here."""
        raise AssertionError(request_id)

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        """Keep it for ``until``."""
        heapq.heappush(self._timers, (at_s, next(self._serial), action))

    def until(self, at_s: float) -> None:
        """Let time pass, and what was due in it happen."""
        while self._timers and self._timers[0][0] <= at_s:
            due_s, _, action = heapq.heappop(self._timers)
            self.now_s = max(self.now_s, due_s)
            action()
        self.now_s = at_s

    def arrive(
        self, name: str, prompt: int = 100, cap: int | None = 100, *, deadline_s: float = 1e9, streaming: bool = True
    ) -> None:
        """A request asks; its true length is absurd, so whoever looks at it is found out."""
        self.admission.arrive(SimRequest(name, prompt, 10**9, cap, self.now_s, streaming=streaming), deadline_s)

    def scrape(
        self,
        usage: float = 0.0,
        *,
        replica: str = "r0",
        running: int = 0,
        waiting: int = 0,
        preemptions: float = 0.0,
        age_s: float = 0.0,
    ) -> None:
        """One scrape arrives now that was true ``age_s`` ago."""
        engine = EngineSample("0", usage, running, waiting, preemptions_total=preemptions)
        self.admission.observe(ReplicaSample(replica, self.now_s - age_s, (engine,)))
