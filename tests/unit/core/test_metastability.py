"""A cache counts as lost only when it was there, is gone, and somebody waits; until it is back the cold wait and the warm go first."""

from dataclasses import replace

import pytest

from proxy.core.metastability import (
    COLD_RATIO,
    HOLD_RATIO,
    LONG_S_MIN,
    RECOVERY_S_MAX,
    MetastabilityGuard,
    lost_below,
)
from proxy.core.placement import Placement
from proxy.core.replica import EngineSample
from proxy.core.saturation import Binding
from proxy.core.wait_queue import Waiting, WaitQueue
from proxy.core.warmth import Warmth
from tests.support.builders import book, demand, engine_sample, lease_of

STEP_S = 0.5
TOKENS = 1000.0  # looked up between two scrapes


class Replica:
    """Scrapes of an engine whose counters rise as told."""

    def __init__(self) -> None:
        self.guard = MetastabilityGuard()
        self.now_s = 0.0
        self._queries = self._hits = 0.0

    def see(self, seconds: float, hit_ratio: float, *, usage: float = 0.95, waiting: int = 5, held: bool = False) -> "Replica":
        """Let it run so long."""
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            self._queries += TOKENS
            self._hits += hit_ratio * TOKENS
            sample = replace(
                engine_sample(usage=usage, waiting=waiting),
                prefix_queries_tokens_total=self._queries, prefix_hits_tokens_total=self._hits,
            )  # fmt: skip
            self.guard.observe(sample, self.now_s, held_for_kv=held)
        return self

    def warm(self) -> "Replica":
        """It has lived on its cache for two minutes."""
        return self.see(120.0, 0.95, usage=0.4, waiting=0)


def test_a_lost_cache_under_pressure_is_recovered() -> None:
    here = Replica().warm().see(40.0, 0.02)
    assert here.guard.recovering
    assert here.guard.recoveries_total == 1


def test_work_that_tripled_is_a_loss_though_a_common_prompt_keeps_hits_up() -> None:
    assert lost_below(0.95) == pytest.approx(0.85)
    assert Replica().warm().see(40.0, 0.7).guard.recovering
    assert not Replica().warm().see(40.0, 0.9).guard.recovering


def test_half_the_hits_are_a_loss_where_few_were_found_before() -> None:
    assert lost_below(0.6) == 0.3


@pytest.mark.parametrize(
    ("usage", "waiting", "held", "recovers"),
    [(0.95, 5, False, True), (0.5, 0, True, True), (0.95, 0, False, False), (0.8, 5, False, False)],
)
def test_without_anybody_waiting_for_room_nothing_is_wrong(usage: float, waiting: int, held: bool, recovers: bool) -> None:
    assert Replica().warm().see(40.0, 0.02, usage=usage, waiting=waiting, held=held).guard.recovering is recovers


def test_a_cache_that_never_helped_is_not_missed() -> None:
    assert not Replica().see(120.0, 0.4, usage=0.4, waiting=0).see(60.0, 0.0).guard.recovering


def test_what_was_seen_for_too_short_is_no_custom() -> None:
    assert not Replica().see(LONG_S_MIN - 10.0, 0.95, usage=0.4, waiting=0).see(60.0, 0.02).guard.recovering


def test_a_surge_does_not_pass_for_what_is_usual() -> None:
    """The hit ratio falls slowly, under pressure, over many minutes: the last of it is still compared with the first."""
    here = Replica().warm()
    for percent in range(94, 80, -1):
        here.see(60.0, percent / 100)
    assert here.guard.recoveries_total >= 1


@pytest.mark.parametrize("missing", ["prefix_queries_tokens_total", "prefix_hits_tokens_total"])
def test_engines_that_do_not_count_hits_are_left_alone(missing: str) -> None:
    guard = MetastabilityGuard()
    for at in range(400):
        full = EngineSample("0", 0.95, 5, 5, prefix_queries_tokens_total=1000.0 * at, prefix_hits_tokens_total=0.0)
        guard.observe(replace(full, **{missing: None}), float(at), held_for_kv=True)  # type: ignore[arg-type]
    assert not guard.recovering
    assert not guard.keeps_out(1.0, 0.0)


def test_it_is_over_when_the_hits_are_back_and_nobody_is_kept_out() -> None:
    here = Replica().warm().see(40.0, 0.02)
    for _ in range(20):
        assert here.guard.keeps_out(0.9, 0.0)
        here.see(STEP_S, 0.95)
    here.see(30.0, 0.95)
    assert not here.guard.recovering
    assert not here.guard.keeps_out(0.9, 0.0)


def test_while_the_cold_are_kept_out_hits_alone_end_nothing() -> None:
    here = Replica().warm().see(40.0, 0.02)
    for _ in range(100):
        here.guard.keeps_out(0.9, 0.0)
        here.see(STEP_S, 0.95)
    assert here.guard.recovering


def test_a_load_that_stays_cold_is_given_up_on_and_not_missed_again() -> None:
    here = Replica().warm().see(40.0, 0.02).see(RECOVERY_S_MAX + 5.0, 0.02)
    assert not here.guard.recovering
    here.see(600.0, 0.02)
    assert (here.guard.recovering, here.guard.recoveries_total) == (False, 1)


@pytest.mark.parametrize(
    ("usage", "cached", "out"),
    [(COLD_RATIO, 0.1, False), (COLD_RATIO + 0.01, 0.1, True), (HOLD_RATIO, 0.95, False), (HOLD_RATIO + 0.01, 0.95, True)],
)
def test_the_cold_wait_from_half_a_pool_on_and_the_warm_from_two_thirds(usage: float, cached: float, out: bool) -> None:
    guard = Replica().warm().see(40.0, 0.02).guard
    assert guard.keeps_out(usage, cached) is out


def test_a_recovering_replica_binds_by_name_and_an_empty_one_takes_anybody() -> None:
    here = book(usable=100)
    here.saturation.guard = Replica().warm().see(40.0, 0.02).guard
    assert here.verdict(demand("first", prompt=1200, cap=10), 0.0).fits
    lease_of(demand("a", prompt=700, cap=10), here)
    assert here.binding(demand("b", prompt=400, cap=10), 0.2, 0.0) is Binding.RECOVERY
    assert here.binding(demand("b", prompt=400, cap=10), 0.2, 0.0, cached_tokens=390.0) is Binding.NONE


def test_with_others_waiting_only_the_warm_of_a_recovering_replica_go_at_once() -> None:
    here = book(usable=1000)
    queue = WaitQueue(requests_max=9, tokens_max=10**6, bytes_max=10**6)
    placement, entry = Placement(queue, Warmth()), Waiting(demand("new", prompt=400, cap=10), 0.0)
    assert placement.at_once(entry, [here], 0.0) is not None
    queue.push(Waiting(demand("waits", prompt=400, cap=10), 0.0))
    assert placement.at_once(entry, [here], 0.0) is None
    here.saturation.guard = Replica().warm().see(40.0, 0.02).guard
    assert placement.at_once(entry, [here], 0.0) is None, "it is cold"
