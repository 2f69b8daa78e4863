"""Limits other than KV: seats told or learned, prefill backlog, and requests waiting inside the engine."""

from proxy.core.saturation import CEILING_LIFE_S, PREFILL_TOKENS_MAX, WAITING_SAMPLES, Binding, Saturation
from tests.support.builders import engine_sample


def binding(
    one: Saturation, *, sequences: int = 1, held: int = 0, prompt: int = 10, prefill: int = 0, now_s: float = 0.0
) -> Binding:
    return one.binding(sequences=sequences, sequences_held=held, prompt_tokens=prompt, prefill_tokens=prefill, now_s=now_s)


def learned(ceiling: int, now_s: float = 0.0) -> Saturation:
    """An engine that ran ``ceiling`` sequences, no more, while others waited with KV to spare."""
    one = Saturation(None)
    for _ in range(WAITING_SAMPLES + 1):
        one.observe(engine_sample(usage=0.3, running=ceiling, waiting=2), now_s)
    return one


def test_told_seats_bind_at_the_last_one() -> None:
    one = Saturation(8)
    assert binding(one, held=7) is Binding.NONE
    assert binding(one, held=8) is Binding.SEATS
    assert binding(one, sequences=2, held=7) is Binding.SEATS
    assert binding(one, sequences=2, held=6) is Binding.NONE


def test_an_empty_replica_takes_more_sequences_than_seats() -> None:
    assert binding(Saturation(8), sequences=100, held=0) is Binding.NONE


def test_unknown_seats_bind_nobody() -> None:
    one = Saturation(None)
    assert one.seats(0.0) is None
    assert binding(one, held=10_000) is Binding.NONE


def test_a_ceiling_is_learned_from_waiting_beside_free_kv() -> None:
    one = learned(12)
    assert one.seats(0.0) == 12


def test_a_full_pool_teaches_no_ceiling() -> None:
    one = Saturation(None)
    for _ in range(10):
        one.observe(engine_sample(usage=0.99, running=12, waiting=2), 0.0)
    assert one.seats(0.0) is None
    for _ in range(10):  # nor does a usage nobody told
        one.observe(engine_sample(usage=None, running=12, waiting=2), 0.0)
    assert one.seats(0.0) is None


def test_a_wrong_ceiling_is_forgotten() -> None:
    one = learned(12, now_s=100.0)
    assert one.seats(100.0 + CEILING_LIFE_S - 1.0) == 12
    assert one.seats(100.0 + CEILING_LIFE_S) is None


def test_the_most_seen_running_is_a_floor_under_the_ceiling() -> None:
    one = learned(12)
    one.observe(engine_sample(usage=0.5, running=20, waiting=0), 1.0)
    assert one.seats(1.0) == 20


def test_told_seats_rule_over_learned_ones() -> None:
    one = Saturation(64)
    for _ in range(10):
        one.observe(engine_sample(usage=0.3, running=12, waiting=2), 0.0)
    assert one.seats(0.0) == 64


def test_a_single_sample_with_waiting_is_an_accident_two_close_the_replica() -> None:
    one = Saturation(None)
    for _ in range(WAITING_SAMPLES - 1):
        one.observe(engine_sample(usage=0.95, running=5, waiting=1), 0.0)
    assert binding(one, held=5) is Binding.NONE
    one.observe(engine_sample(usage=0.95, running=5, waiting=1), 0.0)
    assert binding(one, held=5) is Binding.ENGINE_QUEUE
    assert binding(one, held=0) is Binding.NONE
    one.observe(engine_sample(usage=0.95, running=5, waiting=0), 0.0)
    assert binding(one, held=5) is Binding.NONE


def test_only_waiting_for_capacity_counts_where_the_engine_tells_why() -> None:
    one = Saturation(None)
    for _ in range(5):
        one.observe(engine_sample(usage=0.95, running=5, waiting=3, waiting_capacity=0), 0.0)
    assert binding(one, held=5) is Binding.NONE


def test_silent_gauges_close_nothing() -> None:
    one = Saturation(None)
    for _ in range(5):
        one.observe(engine_sample(usage=None, running=None, waiting=None), 0.0)
    assert (one.seats(0.0), binding(one, held=5)) == (None, Binding.NONE)


def test_prefill_backlog_binds_beyond_its_bound_but_never_the_first() -> None:
    one = Saturation(None)
    assert binding(one, prompt=PREFILL_TOKENS_MAX - 100, prefill=100, held=1) is Binding.NONE
    assert binding(one, prompt=PREFILL_TOKENS_MAX - 99, prefill=100, held=1) is Binding.PREFILL
    assert binding(one, prompt=10 * PREFILL_TOKENS_MAX, prefill=0, held=1) is Binding.NONE
