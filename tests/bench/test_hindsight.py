"""The sweep finds what is there to find, tries nothing twice, and what it plays is the workload asked for."""

import json
from dataclasses import replace

import pytest

from proxy.sim.figures import Figures
from proxy.sim.scenario import play
from tests.bench.hindsight import hindsight, main, parse, rank, scenario_of

PLAIN = Figures(goodput_ratio=0.0, tokens_per_s=0.0)


class Hill:
    """Goodput falls from a peak in both directions."""

    def __init__(self, peaks: dict[str, float]) -> None:
        self.peaks = peaks
        self.played: list[str] = []

    def __call__(self, name: str) -> Figures:
        self.played.append(name)
        family, _, value = name.partition(":")
        return replace(PLAIN, goodput_ratio=1.0 - abs(float(value) / self.peaks[family] - 1.0))


@pytest.mark.parametrize("cap", [14, 22, 37, 40, 52, 95, 120])
def test_a_peak_is_found_to_a_few_per_cent(cap: int) -> None:
    hill = Hill({"static": cap, "threshold": 0.65, "threshold-own": 1.0})
    found = hindsight(hill, 40.0)
    assert rank(found["static"].figures)[0] > 0.9
    assert found["threshold"].name == "threshold:0.65"
    assert found["threshold-own"].name == "threshold-own:1"
    assert len(hill.played) == len(set(hill.played)) <= 30


def test_a_pool_of_one_sequence_can_be_swept() -> None:
    found = hindsight(Hill({"static": 1.0, "threshold": 0.9, "threshold-own": 0.9}), 1.0)
    assert found["static"].name == "static:1"


def test_of_equal_goodput_the_faster_is_better() -> None:
    found = hindsight(lambda name: replace(PLAIN, tokens_per_s=float(name == "static:48")), 40.0)
    assert found["static"].name == "static:48"


def test_the_best_cap_beats_timid_ones_on_the_real_thing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seed", "2", "--requests", "40", "--load", "2", "--kv-blocks", "750", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"static", "threshold", "threshold-own"}
    best = told["static"]
    assert best["offered"] == 40
    scenario = scenario_of(parse(words))
    assert (scenario.kv_blocks, scenario.load_ratio) == (750, 2.0)
    for worse in (1, 2):
        assert rank(play(scenario, f"static:{worse}")) < (best["goodput_ratio"], best["tokens_per_s"])


def test_all_that_was_tried_is_shown_and_the_best_of_each_marked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--requests", "10", "--kv-blocks", "750"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.endswith("best") for line in lines) == 3
    assert {line.partition(":")[0] for line in lines[1:]} == {"static", "threshold", "threshold-own"}
