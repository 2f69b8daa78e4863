"""Limits other than KV: seats told or learned, the engine's own queue, a standstill; and what a scrape teaches of steps."""

import pytest

from proxy.core.book import Book
from proxy.core.health import SlowStart
from proxy.core.replica import EngineSample
from proxy.core.saturation import (
    BACKLOG_S,
    BACKLOG_STEPS,
    BACKLOG_TOKENS_AT_ONCE,
    CEILING_LIFE_S,
    FRESH_S,
    WAITING_SAMPLES,
    Binding,
)
from proxy.core.step_time import TOKEN_BUDGET_START
from proxy.core.step_watch import KV_SPARE_RATIO
from tests.support.builders import book, demand, engine_sample, scrape
from tests.support.saturated import binds, observe, roomy, running, sent, teach

# ---- seats


def test_told_seats_bind_at_the_last_one() -> None:
    here = roomy(8)
    running(here, 6)
    assert binds(here, copies=2) is Binding.NONE
    running(here, 1)
    assert binds(here) is Binding.NONE
    assert binds(here, copies=2) is Binding.SEATS
    running(here, 1)
    assert binds(here) is Binding.SEATS


def test_a_glance_sees_seats_backlogs_and_targets_of_others() -> None:
    here = roomy(8)

    def at_ease(**asked: int) -> bool:
        return here.at_ease(demand("new", **asked), 0.0, 0.0)  # type: ignore[arg-type]

    running(here, 6)
    assert at_ease(copies=2)
    assert not at_ease(copies=3)
    backlog = int(BACKLOG_STEPS * TOKEN_BUDGET_START)
    waiting = sent(here, 1, 0.0, prompt=backlog - 100)
    assert at_ease(prompt=100)
    assert not at_ease(prompt=101)
    waiting[0].placed = True
    assert at_ease(prompt=101)
    running(here, 1, tpot_s=1.0)
    assert not at_ease(prompt=101)
    slow = roomy()
    slow.slow_start = SlowStart(0.0, 60.0)
    assert not slow.at_ease(demand("new"), 0.0, 0.0)


def test_an_empty_replica_takes_more_sequences_than_seats() -> None:
    assert binds(roomy(8), copies=100) is Binding.NONE


def test_unknown_seats_bind_nobody() -> None:
    here = roomy()
    running(here, 300)
    assert here.saturation.seats(0.0) is None
    assert binds(here) is Binding.NONE


def learn_ceiling(
    here: Book, at: int, start_s: float = 0.0, *, usage: float | None = 0.3, samples: int = WAITING_SAMPLES
) -> float:
    """Scrapes of an engine that runs ``at`` and no more, while one of ours sent long ago waits; return the last one's time."""
    running(here, at, sent_s=start_s)
    sent(here, 1, start_s)
    for index in range(1, samples + 1):
        observe(here, start_s + index, engine_sample(usage=usage, running=at, waiting=1, generated=1000.0 * index))
    return start_s + samples


def test_a_ceiling_is_learned_from_waiting_beside_free_kv() -> None:
    here = roomy()
    at_s = learn_ceiling(here, 12)
    assert here.saturation.seats(at_s) == 12
    assert binds(here, at_s) is Binding.SEATS


def test_one_scrape_teaches_no_ceiling() -> None:
    here = roomy()
    at_s = learn_ceiling(here, 12, samples=WAITING_SAMPLES - 1)
    assert here.saturation.seats(at_s) is None


@pytest.mark.parametrize("usage", [KV_SPARE_RATIO, 0.99, None])
def test_a_full_pool_teaches_no_ceiling_nor_does_one_nobody_tells_of(usage: float | None) -> None:
    here = roomy()
    assert here.saturation.seats(learn_ceiling(here, 12, usage=usage, samples=6)) is None


def test_a_prompt_too_large_for_what_is_free_teaches_no_ceiling() -> None:
    """Half of the pool is free and the one that waits needs more than that: it waits for KV."""
    here = book(usable=1000, context=200_000)
    running(here, 12)
    sent(here, 1, 0.0, prompt=600 * 16)
    for at_s in (1.0, 2.0, 3.0):
        observe(here, at_s, engine_sample(usage=0.5, running=12, waiting=1, generated=1000.0 * at_s))
    assert here.saturation.seats(3.0) is None


def test_a_full_step_teaches_no_ceiling() -> None:
    """Who waits while steps are full of prefill waits for the token budget."""
    here = roomy()
    leases = running(here, 12)
    sent(here, 1, 0.0)
    for at_s in (1.0, 2.0, 3.0):
        for lease in leases:
            lease.output_tokens += 10
        prompts = 10 * TOKEN_BUDGET_START * at_s
        sample = EngineSample("0", 0.3, 12, 1, prompt_tokens_total=prompts, generation_tokens_total=120.0 * at_s)
        observe(here, at_s, sample)
    assert here.saturation.seats(3.0) is None


def test_requests_just_sent_teach_no_ceiling() -> None:
    here = roomy()
    running(here, 12)
    for index in range(1, 8):
        sent(here, 1, index - FRESH_S / 2.0)
        for lease in here.saturation.targets.unplaced(0.0)[:-1]:
            lease.placed = True
        observe(here, float(index), engine_sample(usage=0.3, running=12, waiting=1, generated=1000.0 * index))
    assert here.saturation.seats(7.0) is None


def test_a_wrong_ceiling_is_forgotten() -> None:
    here = roomy()
    at_s = learn_ceiling(here, 12, 100.0)
    assert here.saturation.seats(at_s + CEILING_LIFE_S - 0.1) == 12
    assert here.saturation.seats(at_s + CEILING_LIFE_S) is None


def test_the_most_seen_running_is_a_floor_under_the_ceiling() -> None:
    here = roomy()
    at_s = learn_ceiling(here, 12)
    observe(here, at_s + 1.0, engine_sample(usage=0.5, running=20, waiting=0))
    assert here.saturation.seats(at_s + 1.0) == 20


def test_told_seats_rule_over_learned_ones() -> None:
    here = roomy(64)
    assert here.saturation.seats(learn_ceiling(here, 12)) == 64


def test_a_new_epoch_may_have_other_seats() -> None:
    here = roomy()
    at_s = learn_ceiling(here, 12)
    here.new_epoch()
    assert here.saturation.seats(at_s) is None
    at_s = learn_ceiling(here, 5, at_s)
    assert here.saturation.seats(at_s) == 5


def test_sequences_of_others_take_seats_once_two_scrapes_agree() -> None:
    here = roomy(8)
    running(here, 2)
    observe(here, 1.0, engine_sample(usage=0.3, running=8, generated=1.0))
    assert binds(here, 1.0) is Binding.NONE  # some of those may be ours that ended in between
    observe(here, 2.0, engine_sample(usage=0.3, running=8, generated=2.0))
    assert here.saturation.foreign_sequences == 6
    assert binds(here, 2.0) is Binding.SEATS


# ---- the engine's own queue


def test_one_scrape_closes_and_as_many_ends_as_were_waiting_open() -> None:
    here = roomy()
    leases = running(here, 5)
    sent(here, 2, 0.0)
    observe(here, 1.0, engine_sample(usage=0.95, running=5, waiting=2))
    assert here.saturation.queue_debt == 2.0
    assert binds(here, 1.0) is Binding.ENGINE_QUEUE
    here.remove(leases[0].lease_id, 1.1)
    assert binds(here, 1.1) is Binding.ENGINE_QUEUE
    here.remove(leases[1].lease_id, 1.2)
    assert binds(here, 1.2) is Binding.NONE


def test_a_scrape_without_waiting_opens() -> None:
    here = roomy()
    running(here, 5)
    sent(here, 2, 0.0)
    observe(here, 1.0, engine_sample(usage=0.95, running=5, waiting=2))
    observe(here, 1.5, engine_sample(usage=0.95, running=7, waiting=0))
    assert binds(here, 1.5) is Binding.NONE


def test_those_just_sent_are_on_their_way_and_not_waiting() -> None:
    here = roomy()
    running(here, 5)
    sent(here, 3, 1.0 - FRESH_S / 2.0)
    observe(here, 1.0, engine_sample(usage=0.95, running=5, waiting=3))
    assert here.saturation.queue_debt == 0.0
    observe(here, 1.0 + FRESH_S, engine_sample(usage=0.95, running=5, waiting=3))
    assert here.saturation.queue_debt == 3.0


def test_a_learned_prefill_time_makes_fresh_last_longer() -> None:
    """8,000 prompt tokens at a tenth of a millisecond each are 0.8 s of prefill and four steps."""
    here = roomy()
    teach(here.saturation)
    running(here, 5)
    sent(here, 4, 0.0, prompt=2000)
    observe(here, 0.5, engine_sample(usage=0.5, running=6, waiting=3, generated=1.0))
    assert here.saturation.queue_debt == 0.0
    observe(here, 3.0, engine_sample(usage=0.5, running=6, waiting=3, generated=2.0))
    assert here.saturation.queue_debt == pytest.approx(3.0)


def test_our_preempted_ones_wait_in_the_engine() -> None:
    here = roomy()
    running(here, 6)
    observe(here, 1.0, engine_sample(usage=0.99, running=4, waiting=2))
    assert here.saturation.queue_debt == 2.0


def test_of_those_who_wait_for_others_only_our_share_counts() -> None:
    here = roomy()
    running(here, 2)
    observe(here, 1.0, engine_sample(usage=0.99, running=6, waiting=4))
    assert here.saturation.queue_debt == pytest.approx(0.8)


def test_without_requests_of_ours_the_engines_queue_closes_nothing() -> None:
    here = roomy()
    observe(here, 1.0, engine_sample(usage=0.99, running=6, waiting=4))
    assert binds(here, 1.0) is Binding.NONE


def test_only_waiting_for_capacity_counts_where_the_engine_tells_why() -> None:
    here = roomy()
    running(here, 5)
    sent(here, 3, 0.0)
    observe(here, 1.0, engine_sample(usage=0.95, running=5, waiting=3, waiting_capacity=0))
    assert binds(here, 1.0) is Binding.NONE
    observe(here, 2.0, engine_sample(usage=0.95, running=5, waiting=3, waiting_capacity=1))
    assert here.saturation.queue_debt == 1.0


def test_silent_gauges_close_nothing() -> None:
    here = roomy()
    running(here, 5)
    for at_s in range(1, 40):
        observe(here, float(at_s), engine_sample(usage=None, running=None, waiting=None))
    assert (here.saturation.seats(40.0), binds(here, 40.0)) == (None, Binding.NONE)


# ---- what a book adds


def test_a_standstill_closes_the_book_and_movement_opens_it() -> None:
    here = roomy()
    running(here, 3)
    at_s = 0.0
    while not here.saturation.wedge.wedged:
        at_s += 1.0
        here.observe(scrape("r0", at_s, engine_sample(usage=0.1, running=3, generated=7.0)), at_s)
        assert at_s < 30.0
    assert here.verdict(demand("new"), at_s).binding is Binding.WEDGED
    here.observe(scrape("r0", at_s + 1.0, engine_sample(usage=0.1, running=3, generated=8.0)), at_s + 1.0)
    assert here.verdict(demand("new"), at_s + 1.0).fits


def test_windows_come_from_streams_and_counters_alike() -> None:
    """Ten sequences, 50 steps a second: seen on streams, or by the engine's counter alone."""
    for streams in (True, False):
        here = roomy()
        leases = running(here, 10)
        for lease in leases:
            lease.streaming = streams
        for index in range(1, 20):
            for lease in leases:
                lease.output_tokens += 25
            here.observe(scrape("r0", 0.5 * index, engine_sample(usage=0.1, running=10, generated=250.0 * index)), 0.5 * index)
        step_s = here.saturation.step_time.step_s(sequences=10.0, kv_tokens=0.1 * 100_000 * 16)
        assert step_s == pytest.approx(0.02, rel=0.02), streams


def test_what_the_engine_prefills_in_no_time_is_no_backlog() -> None:
    replica = book(usable=100_000)
    limits = replica.saturation
    slow = limits.backlog_tokens_max()
    limits.targets.prefill_tokens_per_s = slow  # in a second: a tenth of it in a tenth
    assert limits.backlog_tokens_max() == slow
    limits.targets.prefill_tokens_per_s = 40.0 * slow
    assert limits.backlog_tokens_max() == pytest.approx(BACKLOG_S * 40.0 * slow)
    limits.targets.prefill_tokens_per_s = 1e9
    assert limits.backlog_tokens_max() == BACKLOG_TOKENS_AT_ONCE
