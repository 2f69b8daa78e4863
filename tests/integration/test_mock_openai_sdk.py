"""The mock through the real ``openai`` SDK over a real socket."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.integration.mock_harness import RunningMock, running, settings


@pytest.fixture
async def mock() -> AsyncIterator[RunningMock]:
    async with running(settings()) as server:
        yield server


@pytest.fixture
async def client(mock: RunningMock) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=mock.base_url, api_key="unused", max_retries=0, timeout=20) as sdk:
        yield sdk


MESSAGES: Any = [{"role": "user", "content": "Tell me about the river."}]


async def test_chat(client: openai.AsyncOpenAI, mock: RunningMock) -> None:
    whole = await client.chat.completions.create(model="mock", messages=MESSAGES, max_tokens=7, extra_body={"ignore_eos": True})
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 7
    text = whole.choices[0].message.content
    assert text
    assert len(mock.server.tokenizer.encode(text)) == 7
    counted = (await mock.post("/tokenize", messages=MESSAGES)).json()
    assert whole.usage.prompt_tokens == counted["count"]


async def test_a_stream_says_the_same_as_the_whole_answer(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="mock", messages=MESSAGES)
    stream = await client.chat.completions.create(
        model="mock", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == len(chunks) - 2
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"


async def test_several_choices_differ(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="mock", messages=MESSAGES, n=3, max_tokens=20)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in whole.choices}) == 3


async def test_completions_of_several_prompts(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(
        model="mock", prompt=["one", "two words"], n=2, max_tokens=4, extra_body={"ignore_eos": True}
    )
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 16
    again = await client.completions.create(model="mock", prompt="two words", max_tokens=4, extra_body={"ignore_eos": True})
    assert again.choices[0].text == whole.choices[2].text


async def test_models(client: openai.AsyncOpenAI) -> None:
    models = await client.models.list()
    assert [model.id for model in models.data] == ["mock"]


async def test_errors_are_the_sdks_own(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="other", messages=MESSAGES)
    assert unknown.value.param == "model"
    with pytest.raises(openai.BadRequestError, match="maximum context length is 4096 tokens"):
        await client.completions.create(model="mock", prompt=[7] * 5000)


async def test_api_key_guards_v1_only() -> None:
    async with running(settings(api_key="secret")) as mock:
        async with openai.AsyncOpenAI(base_url=mock.base_url, api_key="wrong", max_retries=0) as wrong:
            with pytest.raises(openai.AuthenticationError) as refused:
                await wrong.models.list()
        assert refused.value.response.json() == {"error": "Unauthorized"}
        async with openai.AsyncOpenAI(base_url=mock.base_url, api_key="secret", max_retries=0) as right:
            assert (await right.models.list()).data
        assert (await mock.request("GET", "/metrics")).status == 200
        assert (await mock.post("/tokenize", prompt="open")).status == 200
        assert (await mock.request("GET", "/v1/nothing")).status == 401


async def test_queue_limit_is_503() -> None:
    slow = settings(max_num_queued_reqs=2)
    async with running(slow) as mock, openai.AsyncOpenAI(base_url=mock.base_url, api_key="x", max_retries=0) as sdk:
        with pytest.raises(openai.InternalServerError) as refused:
            await sdk.chat.completions.create(model="mock", messages=MESSAGES, n=3)
        assert refused.value.status_code == 503
        assert refused.value.response.json()["error"]["type"] == "Service Unavailable"
        assert (await sdk.chat.completions.create(model="mock", messages=MESSAGES, n=2)).choices
        metrics = (await mock.request("GET", "/metrics")).body
        assert 'vllm:admission_rejections_total{model_name="mock",reason="max_num_queued_reqs"} 1.0' in metrics
