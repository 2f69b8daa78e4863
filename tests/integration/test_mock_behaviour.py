"""What the mock does beyond single answers: disconnects, pressure, prefix sharing, engines side by side."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from proxy.sim.step_time import StepTimeModel
from tests.integration.mock_harness import RunningMock, running, settings

SLOW = StepTimeModel(speed=4)


@pytest.fixture
async def mock() -> AsyncIterator[RunningMock]:
    async with running(settings()) as server:
        yield server


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_blocks(stream: bool) -> None:
    async with running(settings(step_time=SLOW)) as mock:
        body = {"messages": [{"role": "user", "content": "word " * 300}], "stream": stream, "ignore_eos": True}
        headers = {"content-type": "application/json"}
        reader, writer = await mock.open("POST", "/v1/chat/completions", json.dumps(body).encode(), headers)
        if stream:
            await reader.readuntil(b'"content":" ')
        engine = mock.server.pool.engines[0]
        async with asyncio.timeout(10):
            while not engine.published.gauges.running:  # noqa: ASYNC110 - the engine has no event for it
                await asyncio.sleep(0.005)
        assert engine.engine.used_blocks >= 300 // 16
        writer.close()
        await writer.wait_closed()
        await mock.until_idle()
        assert engine.engine.used_blocks == 0
        metrics = (await mock.request("GET", "/metrics")).body
        for line in (
            'num_requests_running{engine="0",model_name="mock"} 0.0',
            'kv_cache_usage_perc{engine="0",model_name="mock"} 0.0',
        ):
            assert f"vllm:{line}" in metrics
        # The real server does not count aborts by the frontend either.
        assert 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="mock"} 0.0' in metrics


async def test_under_pressure_it_preempts_and_every_answer_is_whole() -> None:
    async with running(settings(engine={"num_gpu_blocks": 33, "max_model_len": 512})) as mock:
        answers = await asyncio.gather(
            *(mock.chat(f"{number} " * 20, max_tokens=200, ignore_eos=True, stream=number % 2 == 0) for number in range(8))
        )
        assert all(answer.status == 200 for answer in answers)
        assert [len(answer.events()) for answer in answers[::2]] == [201] * 4
        assert [answer.json()["usage"]["completion_tokens"] for answer in answers[1::2]] == [200] * 4
        counters = mock.server.pool.engines[0].engine.counters
        assert counters.preemptions > 0
        assert counters.preemptions == counters.preemptions_exposed
        assert counters.generation_tokens == 1600
        await mock.until_idle()


async def test_the_next_turn_finds_the_last_answer_in_the_cache(mock: RunningMock) -> None:
    question = {"role": "user", "content": "word " * 40}
    first = (await mock.post("/v1/chat/completions", messages=[question], max_tokens=100, ignore_eos=True)).json()
    answer = first["choices"][0]["message"]
    counters = mock.server.pool.engines[0].engine.counters
    hits_before = counters.prefix_hits
    turns = [question, {"role": "assistant", "content": answer["content"]}, {"role": "user", "content": "And then?"}]
    await mock.post("/v1/chat/completions", messages=turns, max_tokens=1)
    # All but the last sampled token was computed, and of that every full block.
    computed = first["usage"]["total_tokens"] - 1
    assert counters.prefix_hits - hits_before == computed // 16 * 16
    await mock.post("/v1/chat/completions", messages=turns, max_tokens=1, cache_salt="other")
    assert counters.prefix_hits - hits_before == computed // 16 * 16


async def test_stop_strings_cut_the_text(mock: RunningMock) -> None:
    whole = (await mock.chat(max_tokens=60, ignore_eos=True)).json()["choices"][0]["message"]["content"]
    stop = whole.split()[12][:3]
    expected = whole[: whole.index(stop)]
    answer = (await mock.chat(max_tokens=60, ignore_eos=True, stop=[stop])).json()["choices"][0]
    assert answer["message"]["content"] == expected
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", stop)
    events = (await mock.chat(max_tokens=60, ignore_eos=True, stop=stop, stream=True, include_stop_str_in_output=True)).events()
    assert "".join(event["choices"][0]["delta"]["content"] for event in events) == expected + stop


async def test_min_tokens_and_the_end_token(mock: RunningMock) -> None:
    natural = (await mock.chat("short")).json()
    assert natural["choices"][0]["finish_reason"] == "stop"
    length = natural["usage"]["completion_tokens"]
    longer = (await mock.chat("short", min_tokens=length + 5, return_token_ids=True)).json()
    assert longer["usage"]["completion_tokens"] == length + 6
    ids = longer["choices"][0]["token_ids"]
    assert len(ids) == length + 6
    assert ids[-1] == mock.server.tokenizer.end_token_id
    assert mock.server.tokenizer.decode(ids, skip_special_tokens=True) == longer["choices"][0]["message"]["content"]


async def test_continuous_usage_counts_every_token(mock: RunningMock) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = (await mock.chat(max_tokens=9, ignore_eos=True, stream=True, stream_options=options)).events()
    assert [event["usage"]["completion_tokens"] for event in events] == [*range(10), 9]


async def test_stream_interval_joins_tokens(mock: RunningMock) -> None:
    events = (await mock.chat(max_tokens=8, ignore_eos=True, stream=True, stream_interval=3, return_token_ids=True)).events()
    assert [len(event["choices"][0]["token_ids"]) for event in events[1:]] == [1, 3, 3, 1]


async def test_engines_are_used_in_turn_or_as_pinned() -> None:
    async with running(settings(data_parallel_size=2)) as mock:
        for _ in range(4):
            await mock.chat(max_tokens=1)
        assert [engine.engine.counters.prompt_tokens > 0 for engine in mock.server.pool.engines] == [True, True]
        before = mock.server.pool.engines[1].engine.counters.generation_tokens
        body = json.dumps({"prompt": "pinned", "max_tokens": 5, "ignore_eos": True}).encode()
        for _ in range(3):
            headers = {"content-type": "application/json", "x-data-parallel-rank": "1"}
            assert (await mock.request("POST", "/v1/completions", body, headers)).status == 200
        assert mock.server.pool.engines[1].engine.counters.generation_tokens == before + 15
        headers["x-data-parallel-rank"] = "2"
        assert (await mock.request("POST", "/v1/completions", body, headers)).status == 400


async def test_equal_seeds_answer_alike() -> None:
    texts = []
    for seed in (1, 1, 2):
        async with running(settings(seed=seed)) as mock:
            texts.append((await mock.chat("same")).json()["choices"][0]["message"]["content"])
    assert texts[0] == texts[1] != texts[2]


async def test_no_content_type_is_refused(mock: RunningMock) -> None:
    answer = await mock.request("POST", "/v1/completions", b'{"prompt": "x"}')
    assert answer.status == 400
    assert "Unsupported Media Type" in answer.body


async def test_a_trailing_slash_is_redirected(mock: RunningMock) -> None:
    answer = await mock.request("GET", "/v1/models/")
    assert (answer.status, answer.headers["location"]) == (307, "http://mock/v1/models")


async def test_load_counts_open_requests_where_tracked() -> None:
    async with running(settings(step_time=SLOW, track_load=True)) as mock:
        assert (await mock.request("GET", "/load")).json() == {"server_load": 0}
        body = json.dumps({"prompt": "x", "max_tokens": 1000, "ignore_eos": True, "stream": True}).encode()
        reader, writer = await mock.open("POST", "/v1/completions", body, {"content-type": "application/json"})
        await reader.readuntil(b"data: ")
        assert (await mock.request("GET", "/load")).json() == {"server_load": 1}
        writer.close()
        await writer.wait_closed()
        await mock.until_idle()
