"""Tenants who want more than they get."""

import random

import pytest

from proxy.core.policy import Policy
from proxy.sim.admission import GateAdmission
from proxy.sim.fairness import jain_of_backlogged
from proxy.sim.sim_request import SimRequest
from proxy.sim.world import Listed, World, WorldSettings
from tests.support.worlds import pool

POOL = pool(blocks=256)
UNTIL_S = 41.0


def shares(seed: int) -> float:
    """Jain's index of two tenants who both offer more than they get, one with answers of a dozen tokens and one with long ones."""
    rng = random.Random(seed)
    requests = []
    for tenant, prompt, output, per_s in (("brief", 300, 12, 70.0), ("wordy", 60, 250, 6.0)):
        at_s = 0.0
        while at_s < UNTIL_S:
            at_s += rng.expovariate(per_s)
            length = max(1, int(rng.lognormvariate(0.0, 0.5) * output))
            requests.append(SimRequest(f"{tenant}{len(requests)}", prompt, length, 1500, at_s, tenant, wait_s_max=10.0))
    requests.sort(key=lambda one: one.arrival_s)
    world = World(WorldSettings(engine=POOL, wait_s_max=10.0), GateAdmission(Policy()), Listed(requests)).run()
    index = jain_of_backlogged(world.results.values(), UNTIL_S, window_s=20.0)
    assert index is not None, f"nobody was backlogged; seed {seed}"
    return index


@pytest.mark.parametrize("seed", [1, 3])
def test_backlogged_tenants_hold_the_cache_for_equal_time_however_long_their_answers(seed: int) -> None:
    index = shares(seed)
    assert index >= 0.97, f"Jain {index:.3f}; seed {seed}"
