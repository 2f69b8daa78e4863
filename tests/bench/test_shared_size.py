"""Many proxies before many replicas, small enough for a test: what the benchmark of a thousand says holds here."""

import pytest

from proxy.sim.scenario import Scenario
from proxy.sim.store import StoreSettings
from tests.bench.shared_size import FLEET_POLICY, NEVER, played

PROXIES, REPLICAS, SECONDS = 8, 32, 2.0
GRANT_BLOCKS = 1.0  # a row is read between the points of its grid, and is up to half a second old: half of a hundredth of a pool


@pytest.mark.slow
def test_every_grant_of_many_proxies_fits_beside_all_others() -> None:
    scenario = Scenario(
        workload="chat", seed=3, replicas=REPLICAS, kv_blocks=200, load=1.2, requests=NEVER, proxies=PROXIES,
        store=StoreSettings(delay_s=0.001), policy=FLEET_POLICY,
    )  # fmt: skip
    found = played(scenario, SECONDS)
    assert found.grants > REPLICAS  # some replicas got more than one
    assert found.over_blocks <= GRANT_BLOCKS
    assert found.used_ratio_max <= 1.0
    assert found.calls >= found.grants + found.refused
