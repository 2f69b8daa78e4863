"""Figures, table and sentence of the demo, at their edges."""

import re
from dataclasses import replace

import pytest

from proxy.advise.result_file import RequestSample
from proxy.bench.load import Tally
from proxy.demo.report import Figures, as_dict, busy_warning, figures, ratio, sentence, table

DIRECT = Figures(
    completed=400, failed=0, shed=0, preemptions=188, recomputed_tokens=39651, tokens_per_s=3193.8, ttft_s_p50=1.1, ttft_s_p99=3.6,
    tpot_ms_p99=23.0, elapsed_s=37.0,
)  # fmt: skip
BETTER = replace(DIRECT, preemptions=1, recomputed_tokens=21, ttft_s_p50=2.2, ttft_s_p99=2.7, tpot_ms_p99=13.8)
KEYS = {
    "completed", "failed", "shed", "preemptions", "tokens_per_s", "ttft_s_p50", "ttft_s_p99", "tpot_ms_p99", "elapsed_s",
}  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(2.0, 1.0, "×0.50"), (1.0, 3.0, "×3.00"), (0, 0, "–"), (0.0, 5.0, "–"), (None, 1.0, "–"), (1.0, None, "–"), (5, 0, "×0.00")],
)
def test_ratios_never_divide_by_nothing(before: float | None, after: float | None, expected: str) -> None:
    assert ratio(before, after) == expected


def test_figures_are_of_what_was_completed() -> None:
    tally = Tally(4, started_s=10.0, ended_s=14.0)
    tally.results = [
        RequestSample(0.0, 0.0, 1.99, "completed", 1.0, output_tokens=100),
        RequestSample(0.0, 0.0, 3.0, "completed", 3.0, output_tokens=1),
        RequestSample(0.0, 0.0, 0.1, "shed", error="429 queue_full"),
        RequestSample(0.0, 0.0, 0.1, "failed", error="reset"),
    ]
    found = figures(tally, preemptions=5, recomputed_tokens=70)
    assert (found.completed, found.shed, found.failed, found.preemptions, found.recomputed_tokens) == (2, 1, 1, 5, 70)
    assert found.tokens_per_s == pytest.approx(101 / 4)
    assert found.ttft_s_p50 == pytest.approx(2.0)
    assert found.tpot_ms_p99 == pytest.approx(10.0)
    assert found.elapsed_s == pytest.approx(4.0)
    assert tally.reasons() == {"429 queue_full": 1, "reset": 1}


def test_a_run_without_any_answer_has_no_times() -> None:
    found = figures(Tally(3), preemptions=0, recomputed_tokens=0)
    assert (found.tokens_per_s, found.ttft_s_p50, found.ttft_s_p99, found.tpot_ms_p99) == (None, None, None, None)
    assert "–" in table(found, found)
    assert sentence(found, DIRECT) == "Nothing can be compared: no request of the run without kvgate was completed."
    assert sentence(DIRECT, found) == "Nothing can be compared: no request of the run with kvgate was completed."
    assert sentence(found, found) == "Nothing can be compared: no request of either run was completed."


def test_json_has_the_promised_keys_in_numbers() -> None:
    shown = as_dict(DIRECT)
    assert set(shown) == KEYS
    assert shown["ttft_s_p99"] == 3.6
    assert as_dict(figures(Tally(1), preemptions=0, recomputed_tokens=0))["tpot_ms_p99"] is None


def test_the_table_stands_in_columns() -> None:
    lines = table(DIRECT, BETTER).splitlines()
    assert len({len(line) for line in lines}) == 1
    rows = {cells[0]: cells[1:] for cells in (re.split(r" {2,}", line) for line in lines[2:])}
    assert rows["preemptions"] == ["188", "1", "×0.01"]
    assert rows["recomputed tokens"] == ["39,651", "21", "×0.00"]
    assert rows["failed"] == ["0", "0", "–"]
    assert rows["TPOT p99"] == ["23.0 ms", "13.8 ms", "×0.60"]


def test_the_sentence_reads_a_gain_and_its_price() -> None:
    said = sentence(DIRECT, replace(BETTER, tokens_per_s=2900.0))
    assert said == (
        "With kvgate the replicas preempted once instead of 188 times and computed 21 instead of 39,651 tokens a second time; "
        "the slowest hundredth of the answers took 40 % less time a token (23.0 → 13.8 ms), and the replicas made 9 % fewer tokens "
        "a second; the first token came after 2.20 s instead of 1.10 s at the median, since requests now wait before they start, "
        "and after 2.70 s instead of 3.60 s at the 99th percentile."
    )


@pytest.mark.parametrize(
    ("kvgate", "words"),
    [
        (
            replace(DIRECT, preemptions=200),
            "kvgate prevented no preemption here: replicas preempted 200 times instead of 188 times",
        ),
        (replace(DIRECT, tokens_per_s=3200.0), "made as many tokens a second"),
        (replace(DIRECT, tokens_per_s=3600.0), "made 13 % more tokens a second"),
        (replace(DIRECT, tpot_ms_p99=46.0), "took 100 % more time a token"),
        (replace(DIRECT, tpot_ms_p99=23.1), "took the same time a token"),
        (
            replace(DIRECT, ttft_s_p50=0.55, ttft_s_p99=3.6),
            "came after 0.55 s instead of 1.10 s at the median and after 3.60 s instead of 3.60 s at the 99th",
        ),
        (replace(DIRECT, completed=380, shed=20), "kvgate told 20 of 400 requests to come back later"),
        (replace(DIRECT, completed=390, failed=10), "0 requests failed without kvgate and 10 with it"),
    ],
)
def test_the_sentence_says_what_the_figures_say(kvgate: Figures, words: str) -> None:
    said = sentence(DIRECT, kvgate)
    assert words in said
    assert len(re.findall(r"\.(?= |$)", said)) == 1  # one sentence


def test_a_load_that_fits_is_told_as_such() -> None:
    calm = replace(DIRECT, preemptions=0, recomputed_tokens=0)
    assert sentence(calm, calm).startswith(
        "No replica preempted anything in either run, so this load left kvgate nothing to prevent;"
    )


def test_a_busy_machine_is_told() -> None:
    assert busy_warning(3.0, 2) is None
    assert str(busy_warning(5.25, 2)).startswith("this machine is busy (load 5.2 on 2 CPUs)")
