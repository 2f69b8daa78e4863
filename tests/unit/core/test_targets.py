"""What leases promise and ask: least targets, the prefill backlog with the part already done, and sums that return to nothing."""

from math import inf

import pytest

from proxy.core.ledger import Lease
from proxy.core.targets import RATES_KEPT, Targets
from tests.support.builders import demand


def lease(
    name: str, *, prompt: int = 100, sent_s: float = 0.0, ttft_s: float | None = None, tpot_s: float | None = None,
    forecast: float = 50.0, copies: int = 1,
) -> Lease:  # fmt: skip
    asked = demand(name, prompt=prompt, ttft_s=ttft_s, tpot_s=tpot_s, copies=copies)
    return Lease(name, asked, "r0", 100, sent_s, 0.0, streaming=True, output_tokens_forecast=forecast)


def test_the_least_target_is_that_of_those_who_are_here() -> None:
    targets = Targets()
    assert (targets.ttft_s_min, targets.tpot_s_min()) == (inf, inf)
    leases = [lease("a", ttft_s=2.0, tpot_s=0.05), lease("b", ttft_s=1.0, tpot_s=0.03), lease("c", ttft_s=1.0), lease("d")]
    for one in leases:
        targets.add(one)
    assert (targets.ttft_s_min, targets.tpot_s_min()) == (1.0, 0.03)
    assert targets.tpot_s_min(0.04) == 0.05
    assert targets.tpot_s_min(0.06) == inf
    targets.remove(leases[1], 1.0)
    assert (targets.ttft_s_min, targets.tpot_s_min()) == (1.0, 0.05)
    for one in (leases[0], leases[2], leases[3]):
        targets.remove(one, 1.0)
    assert (targets.ttft_s_min, targets.tpot_s_min()) == (inf, inf)
    assert targets.sequences_ended == 4


def test_the_backlog_is_what_is_not_placed() -> None:
    targets = Targets()
    leases = [lease("a", prompt=1000), lease("b", prompt=200), lease("c", prompt=30)]
    for one in leases:
        targets.add(one)
    assert targets.backlog_tokens(0.0, 0.0) == 1230.0
    leases[1].placed = True
    assert targets.backlog_tokens(0.0, 0.0) == 1030.0
    targets.remove(leases[0], 1.0)
    assert targets.backlog_tokens(0.0, 0.0) == 30.0
    leases[2].placed = True
    assert targets.backlog_tokens(0.0, 0.0) == 0.0


def test_of_the_oldest_prompt_the_part_already_done_is_taken_off() -> None:
    targets = Targets()
    leases = [lease("a", prompt=1000, sent_s=10.0), lease("b", prompt=800, sent_s=10.0)]
    for one in leases:
        targets.add(one)
    assert targets.backlog_tokens(10.0, 1000.0) == 1800.0
    assert targets.backlog_tokens(10.5, 1000.0) == 1300.0
    assert targets.backlog_tokens(99.0, 1000.0) == 801.0  # it has not come to stream, so a token at least is left of it
    leases[0].placed = True
    assert targets.backlog_tokens(12.0, 1000.0) == 800.0  # the next one's turn begins now
    assert targets.backlog_tokens(12.3, 1000.0) == pytest.approx(500.0)


def test_the_rate_of_prefill_is_what_first_tokens_and_answers_prove() -> None:
    targets = Targets()
    leases = [lease("a", prompt=1000, sent_s=10.0), lease("b", prompt=600, sent_s=10.0), lease("c", prompt=10, sent_s=10.0)]
    for one in leases:
        targets.add(one)
    leases[0].placed, leases[0].placed_s = True, 10.5
    targets.unplaced(10.7)
    assert targets.prefill_tokens_per_s == pytest.approx(1000 / 0.5 / RATES_KEPT)
    leases[1].output_tokens = 3  # its answer came whole: 1,600 tokens were prefilled in a second
    targets.remove(leases[1], 11.0)
    proven = 2000.0 / RATES_KEPT
    assert targets.prefill_tokens_per_s == pytest.approx(proven + (1600.0 - proven) / RATES_KEPT)
    before = targets.prefill_tokens_per_s
    targets.remove(leases[2], 11.0)  # it left before anything was seen of it: that proves nothing
    assert targets.prefill_tokens_per_s == before
    assert targets.backlog_tokens(11.0, 1.0) == 0.0


def test_the_outlook_is_prompt_per_output_and_leaves_no_rest() -> None:
    targets = Targets()
    leases = [lease(f"q{index}", prompt=100 + index, forecast=7.0 + index / 3.0) for index in range(50)]
    for one in leases:
        targets.add(one)
    assert targets.prefill_outlook == pytest.approx(sum((100 + i) / (7.0 + i / 3.0) for i in range(50)))
    assert targets.output_tokens_mean == pytest.approx(7.0 + 49.0 / 6.0)
    for one in leases:
        targets.remove(one, 1.0)
    assert (targets.prefill_outlook, targets.output_tokens_mean) == (0.0, 0.0)


def test_a_forecast_of_nothing_divides_by_one() -> None:
    targets = Targets()
    targets.add(lease("a", prompt=100, forecast=0.0))
    assert targets.prefill_outlook == 100.0


def test_a_new_epoch_forgets_everybody() -> None:
    targets = Targets()
    targets.add(lease("a", ttft_s=1.0, tpot_s=0.1))
    targets.clear()
    assert (targets.ttft_s_min, targets.tpot_s_min(), targets.backlog_tokens(9.0, 1.0), targets.prefill_outlook) == (
        inf,
        inf,
        0.0,
        0.0,
    )
