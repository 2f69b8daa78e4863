"""Routing in virtual time: what stays warm, what is left when it is overloaded, what spreads when reports are old."""

import os
import random
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from proxy.core.policy import Policy, Queue
from proxy.sim.admission import Admission, GateAdmission, PlainForwarding
from proxy.sim.engine_requests import EngineSettings
from proxy.sim.proxies import Proxies
from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads import Trace, load_workload
from proxy.sim.world import Listed, World, WorldSettings
from tests.bench.prefix_hits import ceiling, hit_ratio, imbalance

BLOCK = 512
DATA = os.environ.get("KVGATE_TEST_DATA")
PATIENT = Policy(queue=Queue(requests_max=1_000_000, tokens_max=10_000_000_000))


def world(
    requests: list[SimRequest], admission: Admission, *, replicas: int = 8, blocks: int = 6250, age_s: float = 0.0
) -> World:
    engine = EngineSettings(num_gpu_blocks=blocks + 1, block_size=BLOCK, max_model_len=200 * 1024, max_num_batched_tokens=8192)
    settings = WorldSettings(replicas=replicas, engine=engine, metrics_age_s=age_s, scrape_s=max(0.5, age_s))
    return World(settings, admission, Listed(requests)).run()


def sessions(count: int, turns: int, *, named: bool) -> list[SimRequest]:
    """Conversations that grow by two blocks a turn, turns four seconds apart, interleaved at random."""
    rng = random.Random(3)
    requests = []
    for who in range(count):
        start_s = rng.random() * 4.0
        for turn in range(turns):
            hashes = tuple(who * 1000 + index for index in range(4 + 2 * turn))
            session = f"s{who}" if named else None
            requests.append(
                SimRequest(
                    f"q{who}.{turn}", len(hashes) * BLOCK + 40, 30, 64, start_s + 4.0 * turn,
                    block_hashes=hashes, session=session,
                )
            )  # fmt: skip
    return sorted(requests, key=lambda one: one.arrival_s)


def homes(one: World) -> Iterator[Counter[str | None]]:
    """On which replicas the turns of each session ran."""
    by_session: dict[str, Counter[str | None]] = {}
    for result in one.results.values():
        who = result.request.request_id.partition(".")[0]
        by_session.setdefault(who, Counter())[result.replica] += 1
    return iter(by_session.values())


@pytest.mark.parametrize("named", [True, False])
def test_sessions_stay_where_they_are_warm(named: bool) -> None:
    requests = sessions(23, 6, named=named)
    one = world(requests, GateAdmission(PATIENT), replicas=4)
    stayed = sum(home.most_common(1)[0][1] for home in homes(one)) / len(requests)
    assert stayed >= 0.95
    assert imbalance(one) <= 1.25
    scattered = world(requests, PlainForwarding(), replicas=4)
    assert sum(home.most_common(1)[0][1] for home in homes(scattered)) / len(requests) < 0.6


def test_an_overloaded_warm_replica_is_left() -> None:
    """Everybody asks for one prompt: it is warm on one replica at first, and soon on all."""
    shared = tuple(range(20))
    requests = [SimRequest(f"q{index}", 20 * BLOCK + 40, 400, 400, 0.02 * index, block_hashes=shared) for index in range(200)]
    one = world(requests, GateAdmission(PATIENT), replicas=4)
    assert imbalance(one) <= 1.25
    assert hit_ratio(one) >= 0.9 * ceiling(requests, BLOCK)


@pytest.mark.parametrize("proxies", [1, 4])
def test_nobody_herds_when_reports_are_five_seconds_old(proxies: int) -> None:
    requests = [SimRequest(f"q{index}", 3 * BLOCK, 300, 300, 0.05 * index, block_hashes=(index,)) for index in range(160)]
    one = world(requests, Proxies(PATIENT, proxies), replicas=8, age_s=5.0)
    assert imbalance(one) <= 1.25
    per_second = Counter((int(result.arrived_s), result.replica) for result in one.results.values())
    assert max(per_second.values()) <= 8, "of 20 requests a second, to 8 replicas"


@pytest.mark.slow
@pytest.mark.skipif(DATA is None, reason="needs the recorded traces: set KVGATE_TEST_DATA")
@pytest.mark.parametrize("kind", ["conversation", "synthetic"])
def test_real_prompts_hit_nine_tenths_of_what_an_endless_cache_would(kind: str) -> None:
    assert DATA is not None
    trace = load_workload(Path(DATA) / "traces" / f"mooncake_{kind}.jsonl.gz", 1, block_size=BLOCK)
    assert isinstance(trace, Trace)
    requests = list(islice(trace.scaled(3.0).arrivals(), 600))  # at the recorded rate these engines have little to do
    gated, turns = world(requests, GateAdmission(PATIENT)), world(requests, PlainForwarding())
    assert hit_ratio(gated) >= 0.9 * ceiling(requests, BLOCK)
    assert imbalance(gated) <= 1.25
    assert hit_ratio(turns) < 0.5 * ceiling(requests, BLOCK)
