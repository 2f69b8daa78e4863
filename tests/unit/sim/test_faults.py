"""A feed shows what it is told to show: nothing where a field is missing, an old value where it is frozen, a new epoch where one begins."""

from dataclasses import replace

import pytest

from proxy.core.outcome import Outcome
from proxy.sim.admission import PlainForwarding
from proxy.sim.engine_requests import EngineCounters, EngineGauges
from proxy.sim.faults import Faults, Feed
from proxy.sim.world import Listed, World, WorldSettings
from tests.support.worlds import EVEN_STEPS, honest, pool

GAUGES = EngineGauges(running=3, waiting=1, usage_ratio=0.5)


def counters(tokens: int) -> EngineCounters:
    """An engine that has generated so much."""
    return EngineCounters(generation_tokens=tokens, prompt_tokens=10, prefix_queries=20, prefix_hits=5)


def test_without_faults_a_scrape_is_what_the_engine_shows() -> None:
    sample = Feed("r0", Faults()).sample(GAUGES, counters(7), 2.0, age_s=1.0)
    (engine,) = sample.engines
    assert (sample.replica, sample.sampled_s, sample.new_epoch) == ("r0", 2.0, False)
    assert (engine.kv_usage_ratio, engine.running, engine.waiting, engine.generation_tokens_total) == (0.5, 3, 1, 7)
    assert (engine.prefix_queries_tokens_total, engine.prefix_hits_tokens_total) == (20, 5)


def test_a_step_shows_when_it_is_done_where_that_is_asked_for() -> None:
    feed = Feed("r0", Faults(), after_step=True)
    (engine,) = feed.sample(GAUGES, counters(7), 2.0, age_s=0.0).engines
    assert (engine.running, engine.generation_tokens_total) == (0, 0), "the first is under way"
    feed.stepped(GAUGES, counters(7))
    (engine,) = feed.sample(replace(GAUGES, running=9), counters(8), 2.5, age_s=0.0).engines
    assert (engine.running, engine.generation_tokens_total) == (3, 7)


def test_what_is_missing_is_none_and_the_rest_stays() -> None:
    feed = Feed("r0", Faults(missing=frozenset({"kv_usage_ratio", "preemptions_total"})))
    (engine,) = feed.sample(GAUGES, counters(7), 2.0, age_s=0.0).engines
    assert (engine.kv_usage_ratio, engine.preemptions_total, engine.running) == (None, None, 3)


def test_a_field_that_no_engine_has_is_refused() -> None:
    with pytest.raises(ValueError, match="kv_usage_perc"):
        Faults(missing=frozenset({"kv_usage_perc"}))


def test_hidden_age_pretends_to_be_new() -> None:
    assert Feed("r0", Faults(age_hidden=True)).sample(GAUGES, counters(7), 2.0, age_s=5.0).sampled_s == 7.0


def test_every_nth_reading_jumps() -> None:
    feed = Feed("r0", Faults(jump_every=3, jump_ratio=1.0))
    seen = [feed.sample(GAUGES, counters(7), float(at), age_s=0.0).engines[0].kv_usage_ratio for at in range(6)]
    assert seen == [0.5, 0.5, 1.0, 0.5, 0.5, 1.0]


def test_frozen_gauges_repeat_what_they_last_showed() -> None:
    feed = Feed("r0", Faults(frozen_s=(1.0, 3.0)))
    seen = [feed.sample(replace(GAUGES, running=at), counters(at), float(at), age_s=0.0).engines[0].running for at in range(5)]
    assert seen == [0, 0, 0, 3, 4]


def test_falling_counters_begin_again_at_zero_and_read_as_a_new_epoch_once() -> None:
    feed = Feed("r0", Faults(counters_fall_s=2.0))
    samples = [feed.sample(GAUGES, counters(100 + 10 * at), float(at), age_s=0.0) for at in range(5)]
    assert [sample.engines[0].generation_tokens_total for sample in samples] == [100, 110, 0, 10, 20]
    assert [sample.new_epoch for sample in samples] == [False, False, True, False, False]


def test_a_restart_loses_what_the_engine_held_and_nothing_else() -> None:
    """Steps of 10 ms: after half a second nobody of these has ended. Who came while it was away is served when it is back."""
    requests = [honest(f"q{i}", 64, 200, 0.01 * i) for i in range(10)] + [honest("late", 64, 20, 0.7)]
    settings = WorldSettings(
        engine=pool(), step_time=EVEN_STEPS, faults=Faults(restarts_s=(0.505,), down_s=1.0, lost_s=0.3)
    )  # fmt: skip
    world = World(settings, PlainForwarding(), Listed(requests)).run()
    outcomes = {name: result.outcome for name, result in world.results.items()}
    assert outcomes.pop("late") is Outcome.COMPLETED
    assert set(outcomes.values()) == {Outcome.UPSTREAM_FAILED}
    assert [result.end_s for name, result in world.results.items() if name != "late"] == pytest.approx([0.805] * 10)
    late = world.results["late"]
    assert late.first_s is not None
    assert late.first_s > 1.505
    delivered = sum(result.output_tokens for result in world.results.values())
    assert world.tokens - delivered == 10, "the step that the engine died in was counted and never told"
    assert len(world.counters) == 2
