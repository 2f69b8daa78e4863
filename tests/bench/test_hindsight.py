"""The sweep finds what is there to find, tries nothing twice, and what it plays is the workload asked for."""

import json
from dataclasses import replace

import pytest

from proxy.sim.figures import Figures
from tests.bench.hindsight import hindsight, main, parse, player

PLAIN = Figures(
    offered=1, completed=1, shed=0, goodput_ratio=0.0, preemptions=0, preemptions_per_1000=0.0, recomputed_prefill_ratio=0.0,
    kv_usage_ratio_mean=0.0, kv_usage_ratio_mean_while_queued=None, queued_time_ratio=0.0, tokens_per_s=0.0, ttft_s_p50=None,
    ttft_s_p99=None, tpot_ms_p99=None, jain_index=1.0, shed_precision=None, decision_us_p50=None, decision_us_p99=None,
    elapsed_s=1.0, good_per_s=0.0,
)  # fmt: skip


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
    assert found["static"].figures.goodput_ratio > 0.9
    assert found["threshold"].name == "threshold:0.65"
    assert found["threshold-own"].name == "threshold-own:1"
    assert len(hill.played) == len(set(hill.played)) <= 30


def test_a_pool_of_one_sequence_can_be_swept() -> None:
    found = hindsight(Hill({"static": 1.0, "threshold": 0.9, "threshold-own": 0.9}), 1.0)
    assert found["static"].name == "static:1"


def test_of_equal_goodput_the_faster_is_better() -> None:
    found = hindsight(lambda name: replace(PLAIN, tokens_per_s=float(name == "static:48")), 40.0)
    assert found["static"].name == "static:48"


def test_the_best_cap_beats_the_others_on_the_real_thing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seed", "2", "--requests", "100", "--clients", "50", "--kv-tokens", "12000", "--deadline", "5", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"static", "threshold", "threshold-own"}
    best = told["static"]
    assert best["offered"] == 100
    play, sequences = player(parse(words))
    assert 5 < sequences < 20
    for worse in (1, 200):
        assert play(f"static:{worse}").goodput_ratio < best["goodput_ratio"]


def test_the_load_is_a_share_of_capacity_and_turns_of_sessions_count() -> None:
    def played(*words: str) -> Figures:
        play, _ = player(parse(list(words)))
        return play("static:30")

    full, half = played("--requests", "200", "--load", "0.8"), played("--requests", "200", "--load", "0.4")
    assert full.offered == half.offered == 200
    assert full.tokens_per_s == pytest.approx(2 * half.tokens_per_s, rel=0.2)
    assert played("--workload", "agent", "--requests", "60", "--kv-tokens", "80000").offered == 60
