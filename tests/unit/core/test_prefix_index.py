"""The image of a replica's prefix cache, against the engine model's own pool."""

import random

import pytest

from proxy.core.prefix_index import HitCredit, PrefixIndex
from proxy.sim.engine import Engine
from proxy.sim.engine_requests import EngineRequest, EngineSettings

BLOCK = 128  # one block an entry, unless said otherwise


def index(blocks: int = 100, block_size: int = BLOCK) -> PrefixIndex:
    return PrefixIndex(blocks, block_size)


def test_a_prompt_is_cached_once_it_was_sent_and_after_its_end() -> None:
    one = index()
    one.place([1, 2, 3])
    assert one.hit_tokens([1, 2, 3, 4]) == 3 * BLOCK
    one.end([1, 2, 3])
    assert one.hit_tokens([1, 2, 9]) == 2 * BLOCK
    assert one.hit_tokens([9, 2, 3]) == 0
    assert one.hit_tokens([]) == 0


@pytest.mark.parametrize("cached", range(9))
def test_the_longest_hit_is_found_whatever_its_length(cached: int) -> None:
    one = index()
    one.place(range(cached))
    assert one.hit_tokens(list(range(8))) == cached * BLOCK


def test_small_blocks_are_indexed_in_strides_and_a_rest_is_not_promised() -> None:
    one = index(block_size=16)
    hashes = tuple(range(100, 121))  # 21 blocks: two whole strides of eight
    keys = one.keys_of(hashes)
    assert list(keys) == [107, 115]
    one.place(keys)
    assert one.hit_tokens(one.keys_of(hashes[:15])) == 8 * 16
    assert repr(one) == "<PrefixIndex held=2 idle=0 blocks=16/100>"


def test_what_was_used_longest_ago_goes_first_and_a_tail_before_its_head() -> None:
    one = index(blocks=4)
    one.place([1, 2])
    one.end([1, 2])
    one.place([3, 4])
    one.end([3, 4])
    one.place([5])
    one.end([5])
    assert one.hit_tokens([1, 2]) == BLOCK, "the older prompt's tail went"
    assert one.hit_tokens([3, 4]) == 2 * BLOCK
    one.place([1])  # used again: now the other is the older
    one.end([1])
    one.place([6])
    assert one.hit_tokens([3, 4]) == BLOCK
    assert one.hit_tokens([1]) == BLOCK


def test_what_somebody_holds_is_never_evicted() -> None:
    one = index(blocks=2)
    one.place([1, 2])
    one.place([1, 2])
    one.end([1, 2])
    one.place([3, 4])
    one.end([3, 4])
    assert one.hit_tokens([1, 2]) == 2 * BLOCK
    assert one.hit_tokens([3, 4]) == 0


def test_outputs_take_room() -> None:
    one = index(blocks=4)
    one.place([1, 2])
    one.fill(2)
    one.end([1, 2])
    one.place([3])
    one.end([3])
    assert one.hit_tokens([1, 2]) == 2 * BLOCK, "outputs of a request go before its prompt"
    one.place([4])
    one.fill(2)
    one.end([4])
    assert one.hit_tokens([1, 2]) == 0


def test_the_index_never_outgrows_the_pool_by_more_than_what_is_held() -> None:
    one = index(blocks=50)
    for start in range(0, 10_000, 10):
        one.place(range(start, start + 10))
        one.fill(3)
        one.end(range(start, start + 10))
        assert len(one) <= 50


def test_a_new_engine_has_nothing() -> None:
    one = index()
    one.place([1, 2])
    one.forget()
    assert one.hit_tokens([1, 2]) == 0
    one.end([1, 2])  # a lease of the old engine ends late
    assert one.hit_tokens([1, 2]) == 0


def test_events_of_the_engine_add_and_take_away() -> None:
    one = index(blocks=4)
    one.stored([1, 2, 3])
    one.removed([3])
    assert one.hit_tokens([1, 2, 3]) == 2 * BLOCK
    one.place([1])
    one.removed([1, 2])
    assert one.hit_tokens([1, 2]) == BLOCK, "held, so another copy of it was evicted"
    one.end([1])
    one.clear()
    assert len(one) == 0
    one.stored(range(10))
    assert repr(one) == "<PrefixIndex held=0 idle=4 blocks=4/4>"


def test_expected_hits_agree_with_the_engine_that_serves_them_one_after_the_other() -> None:
    """Sessions with growing prompts through a pool too small for all of them: promised and counted hits, request by request."""
    rng = random.Random(4)
    engine = Engine(EngineSettings(num_gpu_blocks=61, block_size=BLOCK, max_model_len=8192, max_num_batched_tokens=8192))
    one = index(blocks=60)
    sessions = [[hash((who, turn)) for turn in range(20)] for who in range(12)]
    depth = [1] * len(sessions)
    promised = counted = 0
    for turn in range(200):
        who = rng.randrange(len(sessions))
        depth[who] = depth[who] + 1 if depth[who] < 18 else 1
        hashes = tuple(sessions[who][: depth[who]])
        before = engine.counters.prefix_hits
        engine.add(EngineRequest(f"q{turn}", len(hashes) * BLOCK + 1, 5, 5, hashes))
        promised += one.hit_tokens(hashes)
        one.place(hashes)
        while engine.has_work:
            engine.step()
        one.end(hashes)
        counted += engine.counters.prefix_hits - before
    assert counted > 0
    assert promised == pytest.approx(counted, rel=0.02)


def test_credit_follows_the_counter_and_is_full_where_there_is_none() -> None:
    credit = HitCredit()
    assert credit.ratio == 1.0
    credit.observe(0.0)
    for _ in range(400):
        credit.expect(10_000)
        credit.observe(credit.expected_tokens_total / 2)
    assert credit.ratio == pytest.approx(0.5, abs=0.05)
    for _ in range(400):
        credit.expect(10_000)
        credit.observe(1e9 + credit.expected_tokens_total)
    assert credit.ratio == 1.0, "hits of other traffic earn no more than full credit"
    credit.expect(10**9)
    credit.observe(None)
    assert credit.ratio == 1.0


def test_a_restarted_engine_counts_from_zero() -> None:
    credit = HitCredit()
    credit.observe(5_000.0)
    credit.expect(5_000)
    credit.observe(10_000.0)
    credit.new_epoch()
    credit.observe(0.0)
    assert credit.counted_tokens_total == 5_000
    assert credit.ratio == 1.0
