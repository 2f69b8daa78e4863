"""Two runs compared: equal ones are noise, changes are found, and what cannot be told is said."""

from typing import Any

import pytest

from proxy.advise.compare import Verdict, compare, whole
from proxy.advise.compare_advice import changed_flags, doubts, next_step, sentence
from proxy.advise.compare_curves import over_time, preempted
from proxy.advise.result_file import BenchResult, EngineSeen, Signals, Slo, WorkloadRun
from tests.unit.advise.runs import result, run, sample


def verdict(name: str, before: BenchResult, after: BenchResult) -> Verdict:
    return compare(before, after).figure(name).verdict


def told(before: BenchResult, after: BenchResult) -> str:
    return "\n".join(doubts(before, after, compare(before, after)))


def test_a_run_is_no_different_from_itself() -> None:
    one = run(1)
    found = compare(one, one)
    assert found.verdict is Verdict.NOISE
    assert all(each.change in (0.0, None) for each in found.figures)
    assert found.blocks.paired


@pytest.mark.slow
@pytest.mark.parametrize("load_seed", [1, 2], ids=["the same requests", "other requests"])
def test_equal_engines_are_noise(load_seed: int) -> None:
    """Of six pairs whose queues drift alike at most one may be called different."""
    found = [compare(run(2 * seed), run(2 * seed + 1, load_seed=load_seed)) for seed in range(6)]
    assert {each.blocks.paired for each in found} == {load_seed == 1}
    assert sum(each.verdict is Verdict.NOISE for each in found) >= 5


@pytest.mark.parametrize(
    ("change", "name", "ratio"),
    [
        ({"slower": 1.5}, "ttft_s_p90", 0.5),
        ({"gaps_slower": 1.25}, "tpot_s_p99", 0.25),
        ({"gaps_slower": 1.25}, "itl_s_p99", 0.25),
    ],
)
def test_a_slower_engine_is_worse_and_the_way_back_is_better(change: dict[str, Any], name: str, ratio: float) -> None:
    before, after = run(1), run(2, **change)
    forth, back = compare(before, after), compare(after, before)
    assert (forth.verdict, back.verdict) == (Verdict.WORSE, Verdict.BETTER)
    row = forth.figure(name)
    assert row.low is not None
    assert row.high is not None
    assert 0.0 < row.low < ratio < row.high


def test_the_same_seed_gives_the_same_intervals() -> None:
    assert compare(run(1), run(2)).figures == compare(run(1), run(2)).figures


def test_preemptions_are_found_and_usage_explains() -> None:
    before, after = run(1), run(2, preempted_per_s=0.1, usage=0.9)
    found = compare(before, after)
    row = found.figure("preemptions_per_1000")
    assert row.before == 0.0
    assert row.after == pytest.approx(1000 * 0.1 * 299 / len(after.requests), rel=0.05)
    assert row.verdict is Verdict.WORSE
    assert found.figure("kv_usage_ratio_mean").verdict is Verdict.CHANGED
    assert "preemptions per 1,000 rose (0 → " in sentence(before, after, found)


def test_what_failed_goes_before_fast_answers() -> None:
    """An engine that answers half of the requests twice as fast is worse."""
    before, fast = run(1), run(1, slower=0.5)
    half = [
        sample(one.planned_s, outcome="failed", first_token_s=None, output_tokens=0) if index % 2 else one
        for index, one in enumerate(fast.requests)
    ]
    after = result(half, duration_s=300.0, signals=fast.signals, workload=before.workload)
    found = compare(before, after)
    assert verdict("ttft_s_p90", before, after) is Verdict.BETTER
    assert found.verdict is Verdict.WORSE
    assert sentence(before, after, found).startswith("Worse: failed or unfinished rose (0 → 50 %), within the objective fell")


def test_better_here_and_worse_there_is_mixed() -> None:
    before, after = run(1, slo=Slo()), run(2, slower=2.0, gaps_slower=0.7, slo=Slo())
    found = compare(before, after)
    assert found.verdict is Verdict.MIXED
    assert sentence(before, after, found).startswith("Mixed: ")


def test_throughput_is_that_of_the_load_and_its_interval_has_a_width() -> None:
    """The same answers, the last of them slow: how long the run takes to end is no throughput."""
    before = run(1)
    last = before.requests[-1]
    late = sample(last.planned_s, tokens=last.output_tokens, ttft_s=60.0)
    after = result(
        [*before.requests[:-1], late], duration_s=360.0, signals=before.signals, workload=before.workload, engines=before.engines
    )
    row = compare(before, after).figure("output_tokens_per_s")
    until_s = before.requests[-1].planned_s
    assert row.before == pytest.approx(sum(one.output_tokens for one in before.requests if one.ended_s <= until_s) / until_s)
    assert row.before == row.after
    assert row.verdict is Verdict.NOISE
    other = compare(before, run(2, load_seed=2)).figure("output_tokens_per_s")
    assert other.low is not None
    assert other.high is not None
    assert other.low < other.high


def test_a_tail_of_few_answers_is_not_judged() -> None:
    short = run(1, duration_s=60.0, rate_per_s=2.0)
    assert len(short.measured) < 200
    row = compare(short, run(2, slower=3.0, duration_s=60.0, rate_per_s=2.0)).figure("ttft_s_p99")
    assert (row.verdict, row.low, row.high) == (Verdict.UNKNOWN, None, None)


def test_nothing_measured_is_unknown() -> None:
    before, after = run(1), run(2, signals=())
    assert verdict("waiting_mean", before, after) is Verdict.UNKNOWN
    nothing = result([sample(1.0, outcome="failed", first_token_s=None)])
    assert sentence(before, nothing, compare(before, nothing)) == (
        "Nothing can be compared: no request of the second run was completed."
    )


def test_a_warm_up_is_left_out() -> None:
    cold = [sample(float(at), ttft_s=5.0) for at in range(20)] + [sample(float(at), ttft_s=0.5) for at in range(20, 100)]
    warm = result(cold, duration_s=110.0, warmup_s=20.0)
    assert compare(warm, warm).figure("ttft_s_p90").before == 0.5


def test_the_whole_of_no_difference_is_noise() -> None:
    assert whole([]) is Verdict.NOISE


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        ({"load_seed": 2}, "the seed differs (1, then 2)"),
        ({"rate_per_s": 6.0}, "the rate differs (5, then 6)"),
        ({"workload": WorkloadRun("chat", 1, concurrency=8)}, "the concurrency differs (none, then 8)"),
        ({"slo": Slo(ttft_s=9.0)}, "judged by the first one's"),
        ({"duration_s": 200.0}, "one run took 200 s and the other 300 s: give both the same --duration"),
        ({"signals": ()}, "the second run has no engine signals"),
        ({"engines": (EngineSeen("http://a", "0.31.0", flags={"max-num-seqs": "128"}),)},
         "2 things changed at once (version, max-num-seqs)"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_told(change: dict[str, Any], doubt: str) -> None:
    assert doubt in told(run(1), run(2, **change))


def test_a_late_client_and_failed_scrapes_are_told() -> None:
    late = result([sample(float(at), sent_s=at + 0.5) for at in range(50)], duration_s=60.0,
                  signals=(Signals("http://a", (), (), (), (), (), scrapes_failed=3),))  # fmt: skip
    assert "the client of the second run fell behind its plan (p99 0.50 s)" in told(late, late)
    assert "3 scrapes of the first run failed" in told(late, late)


def test_a_short_run_is_told() -> None:
    brief = result([sample(float(at), tokens=500) for at in range(20)], duration_s=30.0)
    assert "run longer" in told(brief, brief)
    assert told(run(1), run(2)) == ""


def test_one_knob_is_named() -> None:
    other = run(2, engines=(EngineSeen("http://a", "0.32.0", flags={"max-num-seqs": "128"}),))
    assert changed_flags(run(1), other) == {"max-num-seqs": ("64", "128")}


@pytest.mark.parametrize(
    ("before", "after", "advice"),
    [
        ({}, {"slower": 1.5}, "go back to what the first run had"),
        ({"slower": 1.5}, {"usage": 0.93, "waiting": 5.0}, "add replicas rather than push --gpu-memory-utilization"),
        ({"slower": 1.5}, {"usage": 0.4, "waiting": 5.0}, "requests wait while usage is 40 %: raise --max-num-seqs"),
        ({"slower": 1.5}, {"usage": 0.3, "slo": Slo()}, "usage is 30 % and nothing waits: raise the load"),
        ({"slower": 1.5}, {"slo": Slo()}, "this is the sweet spot"),
        ({"slower": 9.0}, {"slower": 5.0}, "TTFT p99 misses 1 s: a larger --max-num-batched-tokens"),
        ({"gaps_slower": 4.0, "slo": Slo(tpot_s=0.05)}, {"gaps_slower": 3.0, "slo": Slo(tpot_s=0.05)}, "TPOT p99 misses 50 ms"),
        ({"preempted_per_s": 1.0}, {"preempted_per_s": 0.2}, "preemptions per 1,000 requests: less at a time"),
        ({"slower": 1.5}, {"signals": ()}, "let the bench read the engine's /metrics"),
        ({"slo": Slo()}, {"slo": Slo()}, "nothing tells the two apart at this load; keep the smaller value"),
    ],
)
def test_what_to_try_next(before: dict[str, Any], after: dict[str, Any], advice: str) -> None:
    one, other = run(1, **before), run(1 if before == after else 2, **after)
    assert advice in next_step(other, compare(one, other))


def test_errors_come_before_any_figure() -> None:
    rows = [sample(float(at), outcome="failed" if at % 3 == 0 else "completed") for at in range(100)]
    broken = result(rows, duration_s=110.0)
    assert next_step(broken, compare(broken, broken)) == "34 % of the requests failed: read their errors before any figure here"


def test_signals_over_time_join_the_engines() -> None:
    one = Signals("http://a", (0.0, 9.0), (0.2, 0.4), (1.0, None), (0.0, 0.0), (0.0, 4.0))
    other = Signals("http://b", (0.0, 9.0), (0.4, 0.8), (2.0, 3.0), (0.0, 0.0), (7.0, 1.0))
    both = result([sample()], signals=(one, other))
    assert over_time(both, "kv_usage_ratio", 2) == [pytest.approx(0.3), pytest.approx(0.6)]
    assert over_time(both, "running", 3) == [3.0, None, 3.0]
    assert preempted(both, 2) == [0.0, 5.0]
