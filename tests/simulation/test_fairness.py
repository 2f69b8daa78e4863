"""Tenants who want more than they get."""

import random

import pytest

from proxy.core.policy import Policy
from proxy.core.policy_tenants import TenantPolicy, Tenants
from proxy.sim.admission import GateAdmission
from proxy.sim.engine_requests import EngineSettings
from proxy.sim.fairness import jain_of_backlogged
from proxy.sim.percentile import percentile
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


RATED = Policy(
    tenants=Tenants(others=TenantPolicy(tokens_per_min=23_400.0, burst_s=5.0))
)  # what 1.5 requests a second take, and some more
KEEPS_ROOM = Policy(tenants=Tenants(undisturbed_ratio=0.99))
FIRST_S, LOUD_S = 2.0, 12.0  # before that everybody keeps to his rate
SMALL = EngineSettings(num_gpu_blocks=257, block_size=16, max_model_len=4096)  # what runs fills two thirds of it


def ttfts_of_others(seed: int, times: float, policy: Policy, engine: EngineSettings, per_s: float) -> list[float]:
    """First tokens of four tenants that keep to their rate, beside one that comes to offer ``times`` its own."""
    requests = []
    for tenant in range(5):
        rng, rate, at_s = random.Random(f"{seed} {tenant}"), per_s, FIRST_S
        while at_s < LOUD_S + 20.0:
            rate = per_s * (times if tenant == 0 and at_s >= LOUD_S else 1.0)
            requests.append(
                SimRequest(f"t{tenant}-{len(requests)}", 90, 1000, 120, at_s + rng.random() / rate, f"t{tenant}", wait_s_max=30.0)
            )
            at_s += 1.0 / rate
    requests.sort(key=lambda one: one.arrival_s)
    world = World(WorldSettings(engine=engine), GateAdmission(policy), Listed(requests)).run()
    others = [one for one in world.results.values() if one.request.tenant != "t0" and one.arrived_s >= LOUD_S]
    assert len(others) == int(4 * 20.0 * per_s)
    return [one.first_s - one.arrived_s for one in others if one.first_s is not None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "engine", "per_s"),
    [(RATED, POOL, 1.5), (KEEPS_ROOM, SMALL, 2.0)],
    ids=["roomy", "keeps room"],
)
def test_a_tenant_at_ten_times_its_rate_leaves_the_others_first_tokens_alone(
    policy: Policy, engine: EngineSettings, per_s: float
) -> None:
    quiet, loud = (
        [ttft_s for seed in range(1, 3) for ttft_s in ttfts_of_others(seed, times, policy, engine, per_s)]
        for times in (1.0, 10.0)
    )
    assert len(loud) == len(quiet), "everybody of the others is served"
    ratio = (percentile(loud, 0.99) or 0.0) / (percentile(quiet, 0.99) or 1.0)
    assert ratio <= 1.2, f"p99 {ratio:.2f} times as long"
