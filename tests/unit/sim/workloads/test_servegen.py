"""ServeGen's clients as tenants: their rates, bursts and lengths, at any load."""

import json
from collections import Counter
from math import isclose
from pathlib import Path
from statistics import mean

import pytest

from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads import load_workload
from proxy.sim.workloads.servegen import SPAN_S, ServeGen
from tests.unit.sim.workloads.trace_files import SERVEGEN, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "s.json.xz", json.dumps(SERVEGEN))


def clients(path: Path, seed: int = 1) -> ServeGen:
    workload = load_workload(path, seed)
    assert isinstance(workload, ServeGen)
    return workload


def by_tenant(requests: list[SimRequest], tenant: str) -> list[SimRequest]:
    return [one for one in requests if one.tenant == tenant]


def test_clients_are_tenants_at_their_own_rates_and_lengths(path: Path) -> None:
    workload = clients(path)
    requests = list(workload.arrivals())
    assert workload.rate_per_s == pytest.approx((3.0 * 7200 + 1200) / SPAN_S)
    assert {one.tenant for one in requests} == {"client-0", "client-1"}
    large, media = by_tenant(requests, "client-0"), by_tenant(requests, "client-1")
    assert isclose(len(large), 3.0 * SPAN_S, rel_tol=0.05)
    assert {one.prompt_tokens for one in large} == {100, 300}
    assert isclose(mean(one.prompt_tokens for one in large), 200, rel_tol=0.05)
    assert {(one.prompt_tokens, one.output_tokens) for one in media} == {(10 + 2 * 500, 2)}
    assert all(0.0 <= one.arrival_s < 600.0 or 3600.0 <= one.arrival_s < 4200.0 for one in media)
    assert {one.output_tokens_max for one in requests} == {None}


def test_arrivals_are_in_order_unique_and_fixed_by_the_seed(path: Path) -> None:
    requests = list(clients(path).arrivals(1.0))
    assert [one.arrival_s for one in requests] == sorted(one.arrival_s for one in requests)
    assert len({one.request_id for one in requests}) == len(requests)
    assert list(clients(path).arrivals(1.0)) == requests
    assert list(clients(path, seed=2).arrivals(1.0)) != requests


def test_a_wanted_load_scales_all_clients_alike(path: Path) -> None:
    workload = clients(path)
    requests = list(workload.arrivals(0.5))
    assert isclose(len(requests), 0.5 * SPAN_S, rel_tol=0.08)
    assert isclose(len(by_tenant(requests, "client-0")) / len(requests), 3.0 * 7200 / (3.0 * 7200 + 1200), rel_tol=0.05)
    with pytest.raises(ValueError, match="above 0"):
        workload.arrivals(0.0)


def test_what_is_left_out_is_told(path: Path) -> None:
    assert clients(path).rate_ratio_left_out == pytest.approx(3000 / (3000 + 1200 + 21_600))


def test_a_closed_loop_mixes_clients_by_their_requests(path: Path) -> None:
    workload = clients(path)
    drawn = [workload.next_request(2.0) for _ in range(4000)]
    counts = Counter(one.tenant for one in drawn if one)
    assert isclose(counts["client-1"] / 4000, 1200 / (1200 + 21_600), rel_tol=0.2)
    assert {one.arrival_s for one in drawn if one} == {2.0}
    assert workload.follow_up(next(workload.arrivals()), 1.0) is None


def test_weights_are_those_of_the_mixture(path: Path) -> None:
    stats = clients(path).stats
    share = 1200 / (1200 + 21_600)
    assert isclose(stats.prompt_tokens_mean, share * 1010 + (1 - share) * 200, rel_tol=0.03)
    assert isclose(stats.output_tokens_mean, share * 2 + (1 - share) * 20, rel_tol=0.03)
    assert clients(path, seed=2).stats == stats
