"""The feed: samples, epochs, several engines, and what it does when answers stop making sense."""

import httpx
import pytest

from proxy.adapters.scraper import FRESH_EVERY
from proxy.ports.replicas import ReplicaFeed, ReplicaUnreachableError
from tests.unit.adapters.fake_vllm import FakeVllm, SteppingClock, recorded
from tests.unit.adapters.feeding import exposition, feed_of


async def test_a_sample_carries_the_engines_and_the_time_of_its_first_byte() -> None:
    clock = SteppingClock()
    fake = FakeVllm(recorded("0.32.0"))
    feed: ReplicaFeed = feed_of(fake, clock=clock)
    await feed.probe()
    before_s = clock.now
    sample = await feed.sample()
    assert (sample.asked_s, sample.sampled_s) == (before_s + 1, before_s + 2)
    assert (sample.replica, sample.started_s, sample.new_epoch, sample.several_engines) == ("r0", 1795969152.55, False, False)
    assert sample.facts is None
    assert [(engine.engine, engine.running, engine.generation_tokens_total) for engine in sample.engines] == [("0", 12, 1405.0)]


async def test_scrapes_are_filtered_and_every_eighth_is_on_a_fresh_connection() -> None:
    fake = FakeVllm(recorded("0.32.0"))
    feed = feed_of(fake)
    await feed.probe()
    fake.requests.clear()
    for _ in range(2 * FRESH_EVERY):
        await feed.sample()
    assert feed.filtered
    assert set(fake.paths()) == {"/metrics/"}
    fresh = [i for i, request in enumerate(fake.requests) if request.headers.get("connection") == "close"]
    assert fresh == [FRESH_EVERY - 1, 2 * FRESH_EVERY - 1]
    await feed.aclose()


async def test_restart_is_one_new_epoch_with_new_facts() -> None:
    fake = FakeVllm(exposition(1e9))
    feed = feed_of(fake)
    await feed.probe()
    assert not (await feed.sample()).new_epoch
    fake.metrics = exposition(2e9, 0).replace(b'num_gpu_blocks="256"', b'num_gpu_blocks="512"')
    sample = await feed.sample()
    assert sample.new_epoch
    assert sample.facts is not None
    assert sample.facts.kv_blocks_total == 512
    after = await feed.sample()
    assert (after.new_epoch, after.facts) == (False, None)


async def test_restart_seen_by_counters_alone() -> None:
    fake = FakeVllm(exposition(None, 500), filters=False)
    feed = feed_of(fake)
    await feed.probe()
    fake.metrics = exposition(None, 0)
    assert (await feed.sample()).new_epoch
    assert not (await feed.sample()).new_epoch


async def test_restart_found_by_a_probe_is_reported_by_the_next_sample() -> None:
    fake = FakeVllm(exposition(1e9))
    feed = feed_of(fake)
    await feed.probe()
    fake.metrics = exposition(2e9)
    facts = await feed.probe()
    sample = await feed.sample()
    assert sample.new_epoch
    assert sample.facts == facts
    assert not (await feed.sample()).new_epoch


async def test_the_first_probe_starts_no_epoch() -> None:
    feed = feed_of(FakeVllm(exposition(1e9)))
    assert not (await feed.sample()).new_epoch
    await feed.probe()
    assert not (await feed.sample()).new_epoch


async def test_a_new_epoch_whose_probe_fails_is_reported_later() -> None:
    fake = FakeVllm(exposition(1e9))
    feed = feed_of(fake)
    await feed.probe()
    fake.metrics = exposition(2e9)
    fake.special["/v1/models"] = lambda _: httpx.Response(500)
    with pytest.raises(ReplicaUnreachableError, match="/v1/models answered 500"):
        await feed.sample()
    del fake.special["/v1/models"]
    sample = await feed.sample()
    assert sample.new_epoch
    assert not (await feed.sample()).new_epoch


async def test_engines_that_answer_in_turn_are_several_and_no_epoch() -> None:
    fake = FakeVllm(exposition(1e9))
    feed = feed_of(fake)
    await feed.probe()
    fake.next_metrics = lambda request: exposition(2e9 if request.headers.get("connection") == "close" else 1e9)
    samples = [await feed.sample() for _ in range(2 * FRESH_EVERY)]
    assert not any(sample.new_epoch for sample in samples)
    assert [sample.several_engines for sample in samples] == [False] * (FRESH_EVERY - 1) + [True] * (FRESH_EVERY + 1)


async def test_several_found_by_the_probe_stays_in_the_samples() -> None:
    turn = 0

    def alternate(_: httpx.Request) -> bytes:
        nonlocal turn
        turn += 1
        return exposition(1e9 + turn % 2)

    feed = feed_of(FakeVllm(b"", next_metrics=alternate))
    assert (await feed.probe()).several_engines_behind
    assert (await feed.sample()).several_engines


async def test_a_silent_replica_is_sampled_without_engines() -> None:
    fake = FakeVllm(recorded("0.32.0-disable-log-stats"))
    feed = feed_of(fake)
    assert not (await feed.probe()).log_stats
    sample = await feed.sample()
    assert sample.engines == ()
    assert sample.started_s == 1.7959699262e9
    fake.metrics = fake.metrics.replace(b"1.7959699262e+09", b"1.7959799262e+09")
    assert (await feed.sample()).new_epoch


async def test_a_replica_without_metrics_is_sampled_by_its_health() -> None:
    fake = FakeVllm(b"", special={"/metrics": lambda _: httpx.Response(404)})
    feed = feed_of(fake, kv_blocks=100)
    assert (await feed.probe()).kv_blocks_total == 100
    fake.requests.clear()
    assert (await feed.sample()).engines == ()
    assert fake.paths() == ["/health"]
    fake.special["/health"] = lambda _: httpx.Response(503)
    with pytest.raises(ReplicaUnreachableError, match="dead or still starting"):
        await feed.sample()


async def test_a_filter_that_stops_working_is_given_up() -> None:
    fake = FakeVllm(recorded("0.32.0"))
    feed = feed_of(fake)
    await feed.probe()
    fake.filters = False
    fake.requests.clear()
    assert (await feed.sample()).engines[0].running == 12
    assert (await feed.sample()).engines[0].running == 12
    assert fake.paths() == ["/metrics/", "/metrics", "/metrics"]
    assert not feed.filtered


async def test_metrics_that_vanish_without_a_start_time_are_a_failure() -> None:
    fake = FakeVllm(exposition(None), filters=False)
    feed = feed_of(fake)
    await feed.probe()
    fake.metrics = b"# TYPE http_requests_total counter\nhttp_requests_total 3\n"
    with pytest.raises(ReplicaUnreachableError, match="metrics are gone"):
        await feed.sample()


async def test_stats_switched_off_by_a_restart_are_a_new_epoch() -> None:
    fake = FakeVllm(exposition(1e9))
    feed = feed_of(fake)
    await feed.probe()
    fake.metrics = recorded("0.32.0-disable-log-stats")
    sample = await feed.sample()
    assert sample.new_epoch
    assert sample.engines == ()
    assert sample.facts is not None
    assert not sample.facts.log_stats


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, content=b"<html>502</html>", headers={"content-type": "text/html"}),
        httpx.Response(502, content=b"# HELP x\n"),
        httpx.Response(307, headers={"location": "/login"}),
        httpx.Response(200, content=b""),
    ],
)
async def test_answers_that_are_no_metrics(answer: httpx.Response) -> None:
    fake = FakeVllm(recorded("0.32.0"))
    feed = feed_of(fake)
    await feed.probe()
    fake.special = {"/metrics": lambda _: answer, "/metrics/": lambda _: answer}
    with pytest.raises(ReplicaUnreachableError, match=f"/metrics answered {answer.status_code}"):
        await feed.sample()
    fake.special = {}
    assert (await feed.sample()).engines[0].running == 12


async def test_a_failed_scrape_between_two_restarts_is_no_second_engine() -> None:
    fake = FakeVllm(exposition(None, 900), filters=False)
    feed = feed_of(fake)
    await feed.probe()
    for tokens in (0, 0):
        fake.special["/metrics"] = lambda _: httpx.Response(503)
        with pytest.raises(ReplicaUnreachableError):
            await feed.sample()
        del fake.special["/metrics"]
        fake.metrics = exposition(None, tokens)
        sample = await feed.sample()
        assert (sample.new_epoch, sample.several_engines) == (True, False)
        fake.metrics = exposition(None, 900)
        await feed.sample()


async def test_skipped_lines_are_counted() -> None:
    fake = FakeVllm(recorded("0.32.0") + b'vllm:num_requests_running{engine="1"} many\n')
    feed = feed_of(fake)
    await feed.sample()
    await feed.sample()
    assert feed.lines_skipped_total == 2


async def test_usage_per_process_follows_the_one_that_moves() -> None:
    fake = FakeVllm(recorded("0.11.2-pid"), filters=False)
    feed = feed_of(fake)
    await feed.probe()
    assert (await feed.sample()).engines[0].kv_usage_ratio == 0.3
    fake.metrics = fake.metrics.replace(b"} 0.05", b"} 0.07")
    assert (await feed.sample()).engines[0].kv_usage_ratio == 0.07


async def test_old_prefix_counters_come_in_tokens_once_the_block_size_is_known() -> None:
    feed = feed_of(FakeVllm(recorded("0.8.5"), version="0.8.5"))
    await feed.probe()
    assert (await feed.sample()).engines[0].prefix_hits_tokens_total == 480.0
