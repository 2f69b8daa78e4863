"""One engine that restarts is a new epoch; several engines behind one URL are not."""

import random
from collections.abc import Iterable

import pytest

from proxy.core.epoch import FRESH_SAME_TO_CLEAR, STARTS_REMEMBERED, WINDOW, EpochJudge, Verdict

SAME, NEW_EPOCH, SEVERAL = Verdict.SAME, Verdict.NEW_EPOCH, Verdict.SEVERAL


def see(judge: EpochJudge, started_s: float | None, count: float | None = 0.0, *, fresh: bool = True) -> Verdict:
    counters = {} if count is None else {"generation_tokens/0": count}
    return judge.observe(fresh_connection=fresh, started_s=started_s, counters=counters)


def verdicts(scrapes: Iterable[tuple[float | None, float]]) -> list[Verdict]:
    judge = EpochJudge()
    return [see(judge, started_s, count) for started_s, count in scrapes]


def test_one_engine_stays_the_same() -> None:
    assert verdicts([(100.0, 0), (100.0, 5), (100.0, 5), (100.0, 9)]) == [SAME] * 4
    assert verdicts([(None, 0), (None, 5), (None, 5), (None, 9)]) == [SAME] * 4


def test_a_clean_restart_is_one_new_epoch() -> None:
    assert verdicts([(100.0, 50), (200.0, 0), (200.0, 3), (200.0, 60)]) == [SAME, NEW_EPOCH, SAME, SAME]


def test_an_idle_engine_that_restarted_is_recognised_by_its_start_time() -> None:
    assert verdicts([(100.0, 0), (200.0, 0), (200.0, 0)]) == [SAME, NEW_EPOCH, SAME]


def test_restart_after_restart_is_never_several() -> None:
    assert verdicts([(100.0, 9), (200.0, 0), (300.0, 0), (400.0, 0)]) == [SAME, NEW_EPOCH, NEW_EPOCH, NEW_EPOCH]


def test_a_fall_to_zero_is_a_restart_even_soon_after_zero() -> None:
    assert verdicts([(None, 0), (None, 10), (None, 0), (None, 1)]) == [SAME, SAME, NEW_EPOCH, SAME]


def test_a_newer_start_time_known_from_before_is_several() -> None:
    judge = EpochJudge()
    see(judge, 200.0)
    for _ in range(FRESH_SAME_TO_CLEAR + 1):
        see(judge, 100.0)
    assert not judge.several
    assert see(judge, 200.0) is SEVERAL


def test_an_old_start_time_seen_again_is_several() -> None:
    assert verdicts([(100.0, 50), (200.0, 7), (100.0, 51), (100.0, 52)]) == [SAME, NEW_EPOCH, SEVERAL, SEVERAL]


def test_an_older_start_time_is_several_at_once() -> None:
    assert verdicts([(200.0, 50), (100.0, 500)]) == [SAME, SEVERAL]


def test_without_start_times_one_fall_is_a_new_epoch() -> None:
    assert verdicts([(None, 50), (None, 0), (None, 0), (None, 8), (None, 70)]) == [SAME, NEW_EPOCH, SAME, SAME, SAME]


def test_counters_that_run_back_and_forth_are_several() -> None:
    # 10 and 1000 are two engines: the second fall lands where the first did.
    assert verdicts([(None, 1000), (None, 10), (None, 1005), (None, 11)]) == [SAME, NEW_EPOCH, SAME, SEVERAL]


def test_a_busy_and_an_idle_engine_are_several() -> None:
    assert verdicts([(None, 10), (None, 0), (None, 12), (None, 0)]) == [SAME, NEW_EPOCH, SAME, SEVERAL]


def test_falling_onto_a_recent_value_is_several_at_once() -> None:
    assert verdicts([(None, 10), (None, 1000), (None, 11)]) == [SAME, SAME, SEVERAL]


def test_equal_start_times_are_told_apart_by_counters() -> None:
    assert verdicts([(100.0, 10), (100.0, 1000), (100.0, 11)]) == [SAME, SAME, SEVERAL]


def test_a_failed_scrape_explains_falls() -> None:
    judge = EpochJudge()
    assert see(judge, None, 1000) is SAME
    judge.interrupted()
    assert see(judge, None, 0) is NEW_EPOCH
    assert see(judge, None, 5) is SAME
    judge.interrupted()
    assert see(judge, None, 0) is NEW_EPOCH  # a crash loop, not two engines
    judge.interrupted()
    judge.interrupted()
    assert see(judge, None, 0) is SAME


def test_falls_far_apart_are_two_restarts() -> None:
    judge = EpochJudge()
    see(judge, None, 1000)
    assert see(judge, None, 0) is NEW_EPOCH
    for count in range(WINDOW):
        assert see(judge, None, count + 1) is SAME
    assert see(judge, None, 0) is NEW_EPOCH


def test_what_is_missing_is_no_evidence() -> None:
    assert verdicts([(100.0, 10), (None, 11), (100.0, 12)]) == [SAME] * 3
    judge = EpochJudge()
    assert see(judge, 100.0, 10) is SAME
    assert see(judge, 100.0, None) is SAME
    assert see(judge, 100.0, 12) is SAME


def test_a_server_that_stops_showing_its_start_time_restarted_if_its_counters_fell() -> None:
    assert verdicts([(100.0, 10), (None, 2)]) == [SAME, NEW_EPOCH]
    assert verdicts([(None, 10), (100.0, 2)]) == [SAME, NEW_EPOCH]
    assert verdicts([(None, 10), (100.0, 12)]) == [SAME, SAME]


def test_several_ends_after_enough_fresh_connections_to_one_engine() -> None:
    judge = EpochJudge()
    see(judge, 200.0)
    assert see(judge, 100.0) is SEVERAL
    for _ in range(100):
        assert see(judge, 100.0, fresh=False) is SEVERAL  # a kept connection proves nothing
    for _ in range(FRESH_SAME_TO_CLEAR - 1):
        assert see(judge, 100.0) is SEVERAL
        assert judge.several
    assert see(judge, 100.0) is SAME
    assert not judge.several
    assert see(judge, 300.0) is NEW_EPOCH


def test_a_rolling_update_ends_with_the_new_engine() -> None:
    judge = EpochJudge()
    seen = [see(judge, started_s) for started_s in (100.0, 200.0, 100.0, 200.0)]
    assert seen == [SAME, NEW_EPOCH, SEVERAL, SEVERAL]
    rest = [see(judge, 200.0) for _ in range(FRESH_SAME_TO_CLEAR)]
    assert rest[-1] is SAME
    assert set(rest[:-1]) == {SEVERAL}


def test_a_third_engine_while_several_starts_the_count_again() -> None:
    judge = EpochJudge()
    see(judge, 200.0)
    see(judge, 100.0)
    for _ in range(FRESH_SAME_TO_CLEAR - 1):
        see(judge, 100.0)
    assert see(judge, 300.0) is SEVERAL
    for _ in range(FRESH_SAME_TO_CLEAR - 1):
        assert see(judge, 300.0) is SEVERAL
    assert see(judge, 300.0) is SAME


def test_declared_several_stays() -> None:
    judge = EpochJudge()
    judge.declare_several()
    assert see(judge, 100.0) is SEVERAL


def test_memory_is_bounded() -> None:
    judge = EpochJudge()
    for i in range(STARTS_REMEMBERED + 50):
        see(judge, float(i))
    assert len(judge._starts) == STARTS_REMEMBERED


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("engines", [2, 5])
def test_a_balancer_is_found_out(engines: int, hidden: bool) -> None:
    """Whatever order the balancer picks, busy engines are told apart within three windows of fresh connections."""
    for seed in range(50):
        rng = random.Random(seed)
        judge = EpochJudge()
        counts = [rng.randrange(1000) for _ in range(engines)]
        found = False
        for _ in range(3 * WINDOW):
            counts = [count + rng.randrange(5) for count in counts]
            pick = rng.randrange(engines)
            found |= see(judge, None if hidden else 100.0 + pick, counts[pick]) is SEVERAL
        assert found, seed


def test_one_engine_is_never_called_several() -> None:
    """Restarts with failed scrapes between them, start times hidden, counters of any pace."""
    for seed in range(50):
        rng = random.Random(seed)
        judge = EpochJudge()
        count = 0
        for _ in range(1000):
            if rng.random() < 0.02:
                judge.interrupted()
                count = 0
            count += rng.randrange(20)
            assert see(judge, None, count, fresh=rng.random() < 0.2) is not SEVERAL
