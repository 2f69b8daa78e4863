"""A surge of conversations leaves a replica without its cache, and plain forwarding keeps it there at the load it served before."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from proxy.core.policy import Policy
from proxy.sim.admission import GateAdmission, PlainForwarding
from proxy.sim.engine_requests import EngineSettings
from proxy.sim.sim_request import SimRequest
from proxy.sim.step_time import StepTimeModel
from proxy.sim.workloads.lengths import Lognormal, generator
from proxy.sim.workloads.sessions import SessionLaw, Sessions
from proxy.sim.world import World, WorldSettings
from tests.support.worlds import gate_of, preemptions

SEED = 2
LAW = SessionLaw(
    system_tokens=320, turns=Lognormal(12, 0.5, 30), added=Lognormal(120, 0.6, 600), reply=Lognormal(40, 0.6, 200), reply_tokens_max=200,
    think_ms=Lognormal(1100, 0.6, 10_000), context_tokens=4096,
)  # fmt: skip
SLOW_PREFILL = StepTimeModel(base_s=0.02, prefill_token_s=2e-4)  # what a cache saves is what this fleet lives on
ENGINE = EngineSettings(num_gpu_blocks=1601, block_size=16, max_model_len=4200)
BASE_PER_S = 0.45
SURGE_S = (60.0, 80.0)
SURGE = 12.0
UNTIL_S = 220.0


class Surge:
    """Sessions that begin at a steady rate, and ``SURGE`` times as many for a while."""

    def __init__(self) -> None:
        self._sessions = Sessions("agent", LAW, SEED, ENGINE.block_size)
        self._arrivals = self._draw()

    def _draw(self) -> Iterator[SimRequest]:
        rng, at_s, serial = generator(SEED, "surge"), 0.0, 0
        while at_s < UNTIL_S:
            at_s += rng.expovariate(BASE_PER_S * (SURGE if SURGE_S[0] <= at_s < SURGE_S[1] else 1.0))
            yield replace(self._sessions.session(serial).turns[0], arrival_s=at_s)
            serial += 1

    def next_request(self, now_s: float) -> SimRequest | None:
        """First turn of the next session."""
        del now_s
        return next(self._arrivals, None)

    def follow_up(self, request: SimRequest, now_s: float) -> SimRequest | None:
        """The session's next turn."""
        return self._sessions.follow_up(request, now_s)


def run(*, gated: bool) -> tuple[World, float, float]:
    """The world after its surge, and its hit ratios before and in the last minute."""
    settings = WorldSettings(engine=ENGINE, step_time=SLOW_PREFILL, until_s=UNTIL_S)
    world = World(settings, GateAdmission(Policy()) if gated else PlainForwarding(), Surge())
    seen: list[tuple[int, int]] = []

    def look() -> None:
        seen.append((world.counters[0].prefix_queries, world.counters[0].prefix_hits))

    for at_s in (20.0, SURGE_S[0], UNTIL_S - 60.0, UNTIL_S - 0.1):
        world.at(at_s, look)
    world.run()
    before, after = ((last[1] - first[1]) / (last[0] - first[0]) for first, last in (seen[:2], seen[2:]))
    return world, before, after


@pytest.mark.slow
def test_after_a_surge_the_cache_is_used_again_and_the_backlog_stops_growing() -> None:
    plain, usual, lost = run(gated=False)
    assert lost < usual - 0.3, "the surge did no lasting harm: this proves nothing"
    gated, before, after = run(gated=True)
    (book,) = gate_of(gated).fleet
    assert before == pytest.approx(usual, abs=0.02), "before the surge the guard is off the path"
    assert book.saturation.guard.recoveries_total >= 1
    assert after > lost + 0.25
    assert gated.tokens > 1.05 * plain.tokens
    assert preemptions(gated) <= preemptions(plain)
