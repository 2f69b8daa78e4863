"""Real traces, where the folder that KVGATE_TEST_DATA names holds them: the figures that their description gives."""

import os
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, pstdev

import pytest

from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads import Trace, load_workload
from proxy.sim.workloads.servegen import ServeGen

FOLDER = os.environ.get("KVGATE_TEST_DATA")
pytestmark = pytest.mark.skipif(FOLDER is None, reason="KVGATE_TEST_DATA names no folder of recorded workloads")


def path(name: str) -> Path:
    return Path(FOLDER or "") / "traces" / name


def gap_cv(requests: tuple[SimRequest, ...]) -> float:
    gaps = [after.arrival_s - before.arrival_s for before, after in pairwise(requests)]
    return pstdev(gaps) / mean(gaps)


@pytest.mark.parametrize(
    ("name", "count", "rate", "prompt_p50", "output_p50", "cv"),
    [
        ("azure2023_code.csv.gz", 8819, 2.57, 1469, 13, 13.2),
        ("azure2023_conv.csv.gz", 19_366, 5.53, 1020, 129, 1.09),
        ("mooncake_conversation.jsonl.gz", 12_031, 3.40, 6909, 350, 1.01),
        ("mooncake_synthetic.jsonl.gz", 3993, 3.91, 11_587, 69, 1.01),
    ],
)
def test_traces(name: str, count: int, rate: float, prompt_p50: int, output_p50: int, cv: float) -> None:
    # Blocks as large as the recorded hashes: the figures do not depend on them, and a tenth of the time is spent.
    workload = load_workload(path(name), 1, block_size=512)
    assert isinstance(workload, Trace)
    assert len(workload.requests) == count
    assert workload.rate_per_s == pytest.approx(rate, rel=0.005)
    assert median(one.prompt_tokens for one in workload.requests) == prompt_p50
    assert median(one.output_tokens for one in workload.requests) == output_p50
    assert gap_cv(workload.requests) == pytest.approx(cv, rel=0.05)


@pytest.mark.parametrize(
    ("name", "hit_ratio"), [("mooncake_conversation.jsonl.gz", 0.366), ("mooncake_synthetic.jsonl.gz", 0.640)]
)
def test_ceilings_of_prefix_hits(name: str, hit_ratio: float) -> None:
    """The description counts recorded hashes, the part-filled last ones too; we count tokens, whole blocks only."""
    assert load_workload(path(name), 1, block_size=512).stats.prefix_hit_ratio_max == pytest.approx(hit_ratio, abs=0.02)


@pytest.mark.parametrize(("name", "left_out"), [("deepseek-r1", 0.0), ("mm-image", 0.0), ("m-small", 0.55), ("m-large", 0.79)])
def test_servegen(name: str, left_out: float) -> None:
    workload = load_workload(path(f"servegen/{name}.day1.json.xz"), 1)
    assert isinstance(workload, ServeGen)
    assert workload.rate_ratio_left_out == pytest.approx(left_out, abs=0.01)
    requests = list(workload.arrivals(2.0))
    assert len(requests) / 7200 == pytest.approx(2.0, rel=0.15)
    assert len({one.tenant for one in requests}) >= 15
    assert mean(one.output_tokens for one in requests) == pytest.approx(workload.stats.output_tokens_mean, rel=0.3)
