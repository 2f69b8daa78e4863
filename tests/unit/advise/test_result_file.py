"""The result file: what is written is read, what is wrong is told, and the figures are those of the definitions."""

import json
from typing import Any

import numpy as np
import pytest

from proxy.advise.result_figures import Gaps, increments, is_good, itl_bin, itl_bin_s, itl_counts, summarise
from proxy.advise.result_file import (
    SCHEMA,
    ResultFileError,
    Signals,
    Slo,
    Spread,
    decode,
    encode,
)
from tests.unit.advise.runs import result, sample


def test_a_file_is_read_as_it_was_written() -> None:
    signals = Signals("http://a", (0.0, 1.0), (0.1, None), (1.0, 2.0), (0.0, 0.0), (0.0, 3.0))
    written = result([sample(), sample(1.0, outcome="shed", status=429, first_token_s=None, output_tokens=0)], signals=(signals,))
    assert decode(encode(written), "a.json") == written


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("not json", "a.json: no result of kvgate bench (.*); make one with kvgate bench URL --out a.json"),
        ({"schema": 99}, f"a.json: result schema 99, this kvgate reads {SCHEMA}; run the benchmark again with this version"),
        ({"duration_s": -1}, r"a.json: a damaged result file: .*>= 0.0.*duration_s"),
        ({"sloo": {}}, "a.json: a damaged result file: .*sloo"),
        ({"signals": [{"url": "a", "at_s": [0], "kv_usage_ratio": [], "running": [], "waiting": [], "preemptions_total": []}]},
         "a.json: a damaged result file: the columns of signals have unequal lengths"),
    ],
)  # fmt: skip
def test_what_is_no_result_is_told_with_what_to_do(change: Any, told: str) -> None:
    text = change if isinstance(change, str) else json.dumps(json.loads(encode(result([sample()]))) | change)
    with pytest.raises(ResultFileError, match=told):
        decode(text.encode(), "a.json")


def test_latencies_count_from_the_plan_so_that_a_late_client_hides_nothing() -> None:
    late = sample(sent_s=0.4)
    assert late.ttft_s == 0.5
    assert late.e2e_s == pytest.approx(0.7)
    assert late.tpot_s == pytest.approx(0.02)
    assert sample(tokens=1).tpot_s is None


@pytest.mark.parametrize("gap_s", [1e-6, 0.0003, 0.0214, 7.5])
def test_a_bin_is_right_to_half_its_width(gap_s: float) -> None:
    assert itl_bin_s(itl_bin(gap_s)) == pytest.approx(gap_s, rel=0.0026)


def test_pooled_gaps_have_the_percentiles_of_the_gaps_themselves() -> None:
    gaps = np.random.default_rng(1).lognormal(-4, 0.7, 5000)
    one = sample(tokens=5001, gap_s=float(gaps.mean()), itl_counts=itl_counts(gaps))
    spread = Gaps.of([one, sample(outcome="failed")]).spread
    assert spread.count == 5000
    assert spread.mean == pytest.approx(gaps.mean())
    assert (spread.p50, spread.p90, spread.p99) == pytest.approx(tuple(np.percentile(gaps, (50, 90, 99))), rel=0.005)
    assert Gaps.of([]).spread == Spread(0)


def test_the_summary_leaves_the_warm_up_out_and_counts_only_answers() -> None:
    rows = [
        sample(0.0, ttft_s=9.0),  # warm-up
        sample(2.0),
        sample(3.0, ttft_s=1.5),  # too late for the objective
        sample(4.0, outcome="failed"),
        sample(5.0, outcome="cancelled"),
    ]
    found = summarise(rows, Slo(ttft_s=1.0), duration_s=12.0, warmup_s=2.0)
    assert found.outcomes == {"cancelled": 1, "completed": 2, "failed": 1}
    assert found.ttft_s == Spread(2, 1.0, 1.0, 1.4, pytest.approx(1.49))
    assert (found.requests_per_s, found.output_tokens_per_s, found.prompt_tokens_per_s) == (0.2, 2.2, 20.0)
    assert (found.goodput_per_s, found.goodput_ratio) == (0.1, pytest.approx(1 / 3))


def test_nothing_measured_has_no_figures() -> None:
    found = summarise([], Slo(), duration_s=0.0)
    assert found.ttft_s == Spread(0)
    assert (found.requests_per_s, found.goodput_ratio) == (None, None)


@pytest.mark.parametrize(
    ("slo", "good"),
    [(Slo(), True), (Slo(ttft_s=0.5), True), (Slo(ttft_s=0.49), False), (Slo(tpot_s=0.019), False), (Slo(e2e_s=0.69), False)],
)
def test_a_good_answer_keeps_every_part_of_the_objective(slo: Slo, good: bool) -> None:
    assert is_good(sample(), slo) is good


def test_a_counter_that_falls_started_again_from_zero() -> None:
    signals = Signals("http://a", (0.0, 1.0, 2.0, 3.0), (None,) * 4, (None,) * 4, (None,) * 4, (5.0, 8.0, None, 2.0))
    assert increments(signals) == [(1.0, 3.0), (3.0, 2.0)]
