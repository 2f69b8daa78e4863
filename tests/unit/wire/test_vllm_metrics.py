"""What is read from the metrics of each version, and what is missing is never zero."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.replica import EngineSample
from proxy.wire.vllm_metrics import (
    NAMES,
    CacheConfig,
    PidUsage,
    Purpose,
    counts_null_block,
    looks_like_exposition,
    read_cache_config,
    read_scrape,
    usage_lookalikes,
    used_blocks,
    version_pair,
)
from tests.unit.wire.expositions import EXPOSITIONS, recorded


def test_recorded_032() -> None:
    scrape = read_scrape(recorded("0.32.0"))
    assert scrape.engines == (
        EngineSample(
            engine="0",
            kv_usage_ratio=0.23529411764705888,  # 1 - 195/255: 60 blocks of 255
            running=12,
            waiting=0,
            waiting_capacity=0,
            preemptions_total=0.0,
            prompt_tokens_total=519.0,
            generation_tokens_total=1405.0,
            prefix_queries_tokens_total=519.0,
            prefix_hits_tokens_total=0.0,
        ),
    )
    assert used_blocks(scrape.engines[0].kv_usage_ratio or 0.0, 256, legacy=False) == 60
    assert scrape.usage_metric == "vllm:kv_cache_usage_perc"
    assert scrape.started_s == 1795969152.55
    assert scrape.has_stats
    assert read_cache_config(recorded("0.32.0")) == CacheConfig(32, 256, 8192, prefix_caching=True)


def test_data_parallel_engines_are_separate() -> None:
    scrape = read_scrape(recorded("0.32.0-dp2"))
    assert [(engine.engine, engine.running, engine.generation_tokens_total) for engine in scrape.engines] == [
        ("0", 3, 121.0),
        ("1", 3, 117.0),
    ]
    assert set(scrape.counters()) == {
        f"{key}/{engine}" for key in ("preemptions", "prompt_tokens", "generation_tokens") for engine in "01"
    }


def test_two_api_servers_show_sums_and_no_start_time() -> None:
    scrape = read_scrape(recorded("0.32.0-two-api-servers"))
    assert scrape.started_s is None
    assert scrape.usage_by_pid == {}
    assert scrape.counters() == {"preemptions/0": 0.0, "prompt_tokens/0": 24.0, "generation_tokens/0": 600.0}


def test_066_has_no_engine_label_and_no_prefix_counters() -> None:
    (engine,) = read_scrape(recorded("0.6.6")).engines
    assert (engine.engine, engine.running, engine.waiting, engine.kv_usage_ratio) == ("0", 4, 2, 0.25)
    assert engine.preemptions_total == 3.0
    assert engine.waiting_capacity is None
    assert engine.prefix_queries_tokens_total is None
    assert read_cache_config(recorded("0.6.6")) == CacheConfig(16, 2000, None, prefix_caching=False)


def test_085_counts_prefix_hits_in_blocks() -> None:
    scrape = read_scrape(recorded("0.8.5"), block_size=16)
    assert scrape.usage_metric == "vllm:gpu_cache_usage_perc"
    assert scrape.engines[0].prefix_queries_tokens_total == 90 * 16
    assert scrape.engines[0].prefix_hits_tokens_total == 30 * 16
    unknown = read_scrape(recorded("0.8.5")).engines[0]
    assert unknown.prefix_queries_tokens_total is None
    assert unknown.prefix_hits_tokens_total is None
    assert read_cache_config(recorded("0.8.5")) == CacheConfig(16, None, None, prefix_caching=True)


@pytest.mark.parametrize(("version", "legacy"), [("0.9.2", True), ("0.10.2", False)])
def test_both_usage_denominators_give_the_same_blocks(version: str, legacy: bool) -> None:
    scrape = read_scrape(recorded(version))
    assert scrape.usage_metric == "vllm:kv_cache_usage_perc"
    assert counts_null_block(version) is legacy
    assert used_blocks(scrape.engines[0].kv_usage_ratio or 0.0, 2000, legacy) == 100
    assert scrape.engines[0].prefix_queries_tokens_total == 1440.0


@given(st.integers(2, 500_000), st.data())
def test_used_blocks_is_exact(total: int, data: st.DataObject) -> None:
    used = data.draw(st.integers(0, total - 1))
    free = total - 1 - used
    assert used_blocks(1 - free / (total - 1), total, legacy=False) == used
    assert used_blocks(1 - free / total, total, legacy=True) == used


@pytest.mark.parametrize("legacy", [True, False])
def test_used_blocks_at_the_edges(legacy: bool) -> None:
    assert used_blocks(0.0, 256, legacy) == 0
    assert used_blocks(1.0, 256, legacy) == 255
    assert used_blocks(1.0, 1, legacy) == 0


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.9.2", True),
        ("0.8.5.post1", True),
        ("0.10.0", False),
        ("0.7.3", False),
        ("0.6.6", False),
        ("dev", False),
        (None, False),
    ],
)
def test_counts_null_block(version: str | None, expected: bool) -> None:
    assert counts_null_block(version) is expected
    assert version_pair("0.11.2rc1+cpu") == (0, 11)


def test_pid_series_take_the_largest_first_and_then_what_moved() -> None:
    text = recorded("0.11.2-pid")
    scrape = read_scrape(text)
    assert scrape.started_s is None
    assert scrape.engines[0].kv_usage_ratio == 0.3
    assert scrape.usage_by_pid == {"0": {"311": 0.05, "312": 0.3}}
    usage = PidUsage()
    assert usage.settle(scrape).engines[0].kv_usage_ratio == 0.3
    moved = read_scrape(text.replace(b'pid="311"} 0.05', b'pid="311"} 0.1'))
    assert usage.settle(moved).engines[0].kv_usage_ratio == 0.1  # 312 stuck at its last step
    assert usage.settle(moved).engines[0].kv_usage_ratio == 0.1
    both = read_scrape(text.replace(b'pid="311"} 0.05', b'pid="311"} 0.15').replace(b"} 0.3", b"} 0.2"))
    assert usage.settle(both).engines[0].kv_usage_ratio == 0.2


def test_pid_choice_survives_the_end_of_its_process() -> None:
    usage = PidUsage()
    usage.settle(read_scrape(recorded("0.11.2-pid")))
    other = read_scrape(recorded("0.11.2-pid").replace(b'pid="312"} 0.3', b'pid="400"} 0.01'))
    assert usage.settle(other).engines[0].kv_usage_ratio == 0.01  # new: it moved
    plain = read_scrape(recorded("0.32.0"))
    assert usage.settle(plain) is plain


def test_log_stats_off_shows_no_engine() -> None:
    scrape = read_scrape(recorded("0.32.0-disable-log-stats"))
    assert scrape.engines == ()
    assert not scrape.has_stats
    assert scrape.started_s is not None
    assert scrape.usage_metric is None
    assert read_cache_config(recorded("0.32.0-disable-log-stats")) is None


def test_a_renamed_usage_metric_is_missing_not_zero() -> None:
    text = recorded("0.32.0").replace(b"vllm:kv_cache_usage_perc", b"vllm:kv_cache_usage_ratio")
    scrape = read_scrape(text)
    assert scrape.usage_metric is None
    assert scrape.engines[0].kv_usage_ratio is None
    assert scrape.engines[0].running == 12
    assert usage_lookalikes(text) == ("vllm:kv_cache_usage_ratio",)
    assert usage_lookalikes(recorded("0.6.6")) == ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"NaN", None), (b"+Inf", None), (b"-Inf", None), (b"1.7", None), (b"-0.2", None), (b"1.05", 1.0), (b"-0.05", 0.0), (b"1e-2", 0.01),
    ],
)  # fmt: skip
def test_odd_usage(value: bytes, expected: float | None) -> None:
    text = b'vllm:kv_cache_usage_perc{engine="0"} ' + value + b'\nvllm:num_requests_running{engine="0"} 1.0\n'
    (engine,) = read_scrape(text).engines
    assert engine.kv_usage_ratio == expected
    assert engine.running == 1


@pytest.mark.parametrize("value", [b"NaN", b"-1.0", b"+Inf"])
def test_odd_counts_are_missing(value: bytes) -> None:
    text = b"vllm:num_requests_running " + value + b"\nvllm:num_preemptions_total " + value + b"\n"
    (engine,) = read_scrape(text).engines
    assert engine.running is None
    assert engine.preemptions_total is None


@pytest.mark.parametrize("cut", range(0, 10_799, 97))
def test_a_truncated_exposition_never_gives_a_wrong_number(cut: int) -> None:
    whole = read_scrape(recorded("0.32.0")).engines[0]
    for engine in read_scrape(recorded("0.32.0")[:cut]).engines:
        for name in EngineSample.__slots__:
            assert getattr(engine, name) in (None, getattr(whole, name))


def test_a_huge_exposition_costs_only_its_size() -> None:
    noise = b"".join(b'vllm:request_decode_time_seconds_bucket{engine="%d",le="%d"} 0.0\n' % (i % 64, i) for i in range(60_000))
    assert read_scrape(noise + recorded("0.32.0") + noise) == read_scrape(recorded("0.32.0"))


@pytest.mark.parametrize(
    "page", [b"", b"<html><body># TYPE of error</body></html>", b'{"error":"Unauthorized"}', b"\x00\xff" * 99]
)
def test_other_answers_are_no_exposition(page: bytes) -> None:
    assert not looks_like_exposition(page)
    assert read_scrape(page).engines == ()


def test_expositions_look_like_some() -> None:
    assert all(looks_like_exposition(path.read_bytes()) for path in EXPOSITIONS.glob("*.txt"))
    assert looks_like_exposition(b"vllm:num_requests_running 1\n")


def test_waiting_for_capacity_is_told_apart_from_deferred() -> None:
    name = b"vllm:num_requests_waiting_by_reason"
    for text in (
        name + b'{engine="0",reason="capacity"} 3\n' + name + b'{engine="0",reason="deferred"} 7\n',
        name + b'{engine="0",reason="deferred"} 7\n' + name + b'{engine="0",reason="capacity"} 3\n',
    ):
        assert read_scrape(text).engines[0].waiting_capacity == 3


def test_engines_sort_by_number() -> None:
    text = b"".join(b'vllm:num_requests_running{engine="%b"} 1\n' % name for name in (b"10", b"x", b"2"))
    assert [engine.engine for engine in read_scrape(text).engines] == ["2", "10", "x"]


def test_every_purpose_has_names() -> None:
    assert set(NAMES) == set(Purpose)
    assert all(NAMES.values())
    names = [name for names in NAMES.values() for name in names]
    assert len(names) == len(set(names))
