"""The six generators: fixed by their seed, with the medians that are written down, at the rates that are asked for."""

import re
from itertools import islice, pairwise, takewhile
from math import isclose
from pathlib import Path
from statistics import median

import pytest

import proxy.sim.workloads as package
from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads import WORKLOADS, Workload, load_workload
from proxy.sim.workloads.lengths import CHAT, RAG, REASONING, LengthLaw
from proxy.sim.workloads.sampled import SHIFT_PERIOD_S, SURGE_END_S, SURGE_OVER_S, SURGE_START_S

README = Path(package.__file__).parents[1] / "README.md"
LAWS = {"chat": CHAT, "rag": RAG, "reasoning": REASONING}


def arrivals(name: str, count: int, *, seed: int = 1, rate_per_s: float = 5.0, gap_cv: float = 1.0) -> list[SimRequest]:
    return list(islice(load_workload(name, seed, gap_cv=gap_cv).arrivals(rate_per_s), count))


def within(requests: list[SimRequest], start_s: float, end_s: float) -> list[SimRequest]:
    return [one for one in requests if start_s <= one.arrival_s < end_s]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_fixes_everything(name: str) -> None:
    assert arrivals(name, 300) == arrivals(name, 300)
    assert arrivals(name, 300) != arrivals(name, 300, seed=2)


@pytest.mark.parametrize("name", WORKLOADS)
def test_arrivals_start_again_at_each_call(name: str) -> None:
    workload = load_workload(name, 1)
    assert list(islice(workload.arrivals(5.0), 50)) == list(islice(workload.arrivals(5.0), 50))


@pytest.mark.parametrize("name", WORKLOADS)
def test_ids_are_unique_and_arrivals_in_order(name: str) -> None:
    requests = arrivals(name, 500)
    assert len({one.request_id for one in requests}) == 500
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(requests))
    assert {one.tenant for one in requests} == {"default"}


@pytest.mark.parametrize("name", LAWS)
def test_lengths_have_the_medians_that_are_written_down(name: str) -> None:
    law: LengthLaw = LAWS[name]
    requests = arrivals(name, 6000)
    assert isclose(median(one.prompt_tokens for one in requests), law.prompt.median, rel_tol=0.05)
    assert isclose(median(one.output_tokens for one in requests), law.output.median, rel_tol=0.05)
    assert {one.output_tokens_max for one in requests} == {law.output_tokens_max}
    assert max(one.prompt_tokens for one in requests) <= law.prompt.most
    assert any(one.output_tokens > law.output_tokens_max for one in requests)  # natural lengths are not cut


@pytest.mark.parametrize("name", ["chat", "rag", "reasoning", "shift", "surge"])
def test_a_faster_rate_is_the_same_traffic(name: str) -> None:
    slow, fast = arrivals(name, 200, rate_per_s=1.0), arrivals(name, 200, rate_per_s=4.0)
    if name in LAWS:
        assert [one.prompt_tokens for one in slow] == [one.prompt_tokens for one in fast]
        assert all(isclose(a.arrival_s, 4.0 * b.arrival_s) for a, b in zip(slow, fast, strict=True))
    first = [one.output_tokens for one in slow if one.request_id == fast[0].request_id]
    assert first == [fast[0].output_tokens]


def test_a_closed_loop_is_offered_the_same_lengths_as_an_open_one() -> None:
    workload = load_workload("chat", 3)
    closed = [workload.next_request(7.0) for _ in range(20)]
    assert [(one.prompt_tokens, one.output_tokens) for one in closed if one] == [
        (one.prompt_tokens, one.output_tokens) for one in arrivals("chat", 20, seed=3)
    ]
    assert {one.arrival_s for one in closed if one} == {7.0}


@pytest.mark.parametrize("name", ["chat", "shift"])
@pytest.mark.parametrize("gap_cv", [1.0, 3.0])
def test_arrivals_come_at_the_rate_asked_for(name: str, gap_cv: float) -> None:
    stream = load_workload(name, 1, gap_cv=gap_cv).arrivals(5.0)
    requests = list(takewhile(lambda one: one.arrival_s < 4 * SHIFT_PERIOD_S, stream))
    assert isclose(len(requests) / (4 * SHIFT_PERIOD_S), 5.0, rel_tol=0.04 * gap_cv)


def test_shift_changes_its_law_every_ten_minutes_at_equal_kv_load() -> None:
    requests = within(arrivals("shift", 13_000, rate_per_s=5.0), 0.0, 4 * SHIFT_PERIOD_S)
    for turn, name in enumerate(("chat", "reasoning", "chat", "reasoning")):
        phase = within(requests, turn * SHIFT_PERIOD_S, (turn + 1) * SHIFT_PERIOD_S)
        assert {one.request_id.split("-")[0] for one in phase} == {name}
    loads = [
        len([one for one in requests if one.request_id.startswith(name)]) * load_workload(name, 1).stats.token_steps_mean
        for name in ("chat", "reasoning")
    ]
    assert isclose(loads[0], loads[1], rel_tol=0.12)
    assert isclose(sum(loads) / len(requests), load_workload("shift", 1).stats.token_steps_mean, rel_tol=0.12)


def test_shift_goes_by_the_clock_in_a_closed_loop() -> None:
    workload = load_workload("shift", 1)
    asked = [(0.0, "chat-0"), (599.0, "chat-1"), (600.0, "reasoning-0"), (1199.9, "reasoning-1"), (1200.0, "chat-2")]
    for now_s, name in asked:
        request = workload.next_request(now_s)
        assert request is not None
        assert (request.request_id, request.arrival_s) == (name, now_s)


def test_surge_is_ten_times_as_much_for_five_minutes() -> None:
    workload = load_workload("surge", 1)
    requests = list(workload.arrivals(2.0))
    assert workload.load_ratio == 0.8
    assert SURGE_END_S - SURGE_START_S == 300.0
    assert SURGE_OVER_S - SURGE_END_S == 3600.0
    for start_s, end_s, rate in ((0.0, SURGE_START_S, 2.0), (SURGE_START_S, SURGE_END_S, 20.0), (SURGE_END_S, SURGE_OVER_S, 2.0)):
        assert isclose(len(within(requests, start_s, end_s)) / (end_s - start_s), rate, rel_tol=0.1)
    assert requests[-1].arrival_s < SURGE_OVER_S


def test_surge_has_no_closed_loop() -> None:
    with pytest.raises(ValueError, match="course of arrivals"):
        load_workload("surge", 1).next_request(0.0)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("rate", [None, 0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_cannot_be_played_is_refused_at_once(name: str, rate: float | None) -> None:
    with pytest.raises(ValueError, match="per second"):
        load_workload(name, 1).arrivals(rate)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("gap_cv", [0.0, float("inf"), float("nan")])
def test_gaps_that_cannot_be_drawn_are_refused(name: str, gap_cv: float) -> None:
    with pytest.raises(ValueError, match="gap_cv="):
        load_workload(name, 1, gap_cv=gap_cv)


@pytest.mark.parametrize("name", WORKLOADS)
def test_weights_do_not_depend_on_the_seed(name: str) -> None:
    assert load_workload(name, 1).stats == load_workload(name, 2).stats


@pytest.mark.parametrize("name", LAWS)
def test_token_steps_are_those_of_the_law(name: str) -> None:
    requests = arrivals(name, 20_000, seed=9)
    by_hand = [sum(one.prompt_tokens + g for g in (1, one.length)) * one.length / 2 for one in requests]
    stats = load_workload(name, 1).stats
    assert isclose(sum(by_hand) / len(by_hand), stats.token_steps_mean, rel_tol=0.05)
    assert stats.requests_per_step(10 * stats.token_steps_mean) == pytest.approx(10.0)
    assert stats.tokens_max == LAWS[name].prompt.most + LAWS[name].output_tokens_max


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"chatt: no such .* chat, rag, reasoning, agent, shift, surge"):
        load_workload("chatt", 1)


def test_single_requests_have_no_follow_up() -> None:
    workload: Workload
    for workload in (load_workload("chat", 1), load_workload("shift", 1)):
        request = next(workload.arrivals(1.0))
        assert workload.follow_up(request, 5.0) is None


def test_the_written_numbers_are_those_of_the_code() -> None:
    text = README.read_text("utf-8")
    for name, law in LAWS.items():
        row = re.search(rf"^\| {name} \|(.*)\|$", text, re.MULTILINE)
        assert row
        numbers = [float(number) for number in re.findall(r"[0-9.]+", row[1].replace(",", ""))]
        assert numbers[:6] == [
            law.prompt.median, law.prompt.sigma, law.prompt.most, law.output.median, law.output.sigma, law.output_tokens_max
        ]  # fmt: skip


def test_the_written_weights_are_those_of_the_code() -> None:
    text = README.read_text("utf-8").partition("What a request of each weighs")[2].replace(",", "")
    for name in WORKLOADS:
        stats = load_workload(name, 1).stats
        row = re.search(rf"^\| {name} \| ([0-9]+)\b.* \| ([0-9]+) \| ([0-9]+) \|$", text, re.MULTILINE)
        assert row, name
        assert [int(number) for number in row.groups()] == [
            round(stats.prompt_tokens_mean), round(stats.output_tokens_mean), round(stats.token_steps_mean, -3)
        ]  # fmt: skip
