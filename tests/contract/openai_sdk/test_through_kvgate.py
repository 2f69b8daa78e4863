"""The real OpenAI SDK gets through kvgate what it gets from the engine, and obeys what kvgate tells it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from proxy.core.outcome import Outcome
from proxy.sim.step_time import StepTimeModel
from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import MESSAGES, RunningProxy, proxying, until, url_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT: dict[str, Any] = {"model": "mock", "messages": MESSAGES, "max_tokens": 8}
COMPLETION: dict[str, Any] = {"model": "mock", "max_tokens": 5}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def nothing_stays(mock: RunningMock, proxy: RunningProxy) -> AsyncIterator[None]:
    yield
    await proxy.until_idle(mock)


def client_of(base_url: str, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=base_url, **{"api_key": "unused", "max_retries": 0, "timeout": 30} | options)


Ask = Callable[[openai.AsyncOpenAI], Any]
VOLATILE = {"id", "created"}


def plain(value: Any) -> Any:
    """Return an answer without what differs from one to the next."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in VOLATILE}
    return plain(value.model_dump()) if hasattr(value, "model_dump") else value


CALLS: dict[str, Ask] = {
    "a chat": lambda sdk: sdk.chat.completions.create(**CHAT),
    "several choices": lambda sdk: sdk.chat.completions.create(**CHAT, n=3),
    "tools": lambda sdk: sdk.chat.completions.create(**CHAT, tools=TOOLS, tool_choice="none"),
    "an image": lambda sdk: sdk.chat.completions.create(
        **CHAT | {"messages": [{"role": "user", "content": [{"type": "text", "text": "what"}]}]}
    ),
    "logprobs": lambda sdk: sdk.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2),
    "a completion": lambda sdk: sdk.completions.create(**COMPLETION, prompt="one two"),
    "several prompts": lambda sdk: sdk.completions.create(**COMPLETION, prompt=["one", "two words"], n=2),
    "token ids": lambda sdk: sdk.completions.create(**COMPLETION, prompt=[5, 6, 7]),
    "lists of token ids": lambda sdk: sdk.completions.create(**COMPLETION, prompt=[[5, 6], [7, 8, 9]]),
    "models": lambda sdk: sdk.models.list(),
}
STREAMS: dict[str, Ask] = {
    "a chat": lambda sdk: sdk.chat.completions.create(**CHAT, stream=True),
    "usage": lambda sdk: sdk.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}),
    "continuous usage": lambda sdk: sdk.chat.completions.create(
        **CHAT, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}
    ),
    "several choices": lambda sdk: sdk.chat.completions.create(**CHAT, stream=True, n=2),
    "a completion": lambda sdk: sdk.completions.create(**COMPLETION, prompt="one two", stream=True),
    "several prompts": lambda sdk: sdk.completions.create(**COMPLETION, prompt=["one", "two"], stream=True),
}


@pytest.mark.parametrize("what", CALLS)
async def test_whole_answers_are_equal(mock: RunningMock, proxy: RunningProxy, what: str) -> None:
    answers = []
    for base_url in (mock.base_url, proxy.base_url):
        async with client_of(base_url) as sdk:
            answers.append(plain(await CALLS[what](sdk)))
    if what == "models":
        answers = [[card["root"] for card in answer["data"]] for answer in answers]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("what", STREAMS)
async def test_streams_are_equal(mock: RunningMock, proxy: RunningProxy, what: str) -> None:
    answers = []
    # Twice through kvgate: it learns the engine's fingerprint from its first stream, before it asks one for usage.
    for base_url in (mock.base_url, proxy.base_url, proxy.base_url):
        async with client_of(base_url) as sdk:
            answers.append([plain(chunk) async for chunk in await STREAMS[what](sdk)])
    assert answers[0] == answers[1] == answers[2]
    asked = "usage" in what
    assert any(chunk.get("usage") for chunk in answers[1]) is asked
    # whether the client asked or not, kvgate itself learns the usage
    assert proxy.records[-1].prompt_tokens_reported == proxy.records[-1].prompt_tokens
    assert proxy.records[-1].output_tokens


async def test_a_synchronous_client(mock: RunningMock, proxy: RunningProxy) -> None:
    """It blocks its thread, so it gets one of its own."""

    def ask(base_url: str) -> list[Any]:
        with openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0, timeout=30) as sdk:
            whole = sdk.chat.completions.create(**CHAT)
            with sdk.chat.completions.create(**CHAT, stream=True) as stream:
                return [plain(whole), [plain(chunk) for chunk in stream]]

    assert await asyncio.to_thread(ask, mock.base_url) == await asyncio.to_thread(ask, proxy.base_url)


async def test_errors_are_the_engines(mock: RunningMock, proxy: RunningProxy) -> None:
    for fields in ({"max_tokens": 0}, {"temperature": -1.0}, {"messages": []}, {"n": 0}):
        bodies = []
        for base_url in (mock.base_url, proxy.base_url):
            async with client_of(base_url) as sdk:
                with pytest.raises(openai.BadRequestError) as refused:
                    await sdk.chat.completions.create(**CHAT | fields)
                bodies.append(refused.value.response.json())
        assert bodies[0] == bodies[1]


async def test_an_unknown_model_and_a_prompt_too_long(proxy: RunningProxy) -> None:
    async with client_of(proxy.base_url) as sdk:
        with pytest.raises(openai.NotFoundError) as unknown:
            await sdk.chat.completions.create(**CHAT | {"model": "other"})
        assert (unknown.value.param, unknown.value.code) == ("model", "model_not_found")
        with pytest.raises(openai.BadRequestError, match="maximum context length is 4096 tokens") as long:
            await sdk.completions.create(**COMPLETION, prompt=[7] * 5000)
        assert long.value.code == "context_length_exceeded"


async def test_a_stream_that_is_left(mock: RunningMock, proxy: RunningProxy) -> None:
    async with client_of(proxy.base_url) as sdk:
        stream = await sdk.chat.completions.create(**CHAT | {"max_tokens": 4000}, stream=True, extra_body={"ignore_eos": True})
        async for _ in stream:
            break
        await stream.close()
        await proxy.until_idle(mock)
    assert proxy.records[-1].outcome is Outcome.CANCELLED


async def test_a_client_that_runs_out_of_time() -> None:
    async with running(settings(step_time=StepTimeModel())) as slow, proxying(url_of(slow)) as proxy:
        async with client_of(proxy.base_url, timeout=httpx.Timeout(30, read=0.3)) as sdk:
            with pytest.raises(openai.APITimeoutError):
                await sdk.chat.completions.create(**CHAT | {"max_tokens": 3000}, extra_body={"ignore_eos": True})
        await proxy.until_idle(slow)
        assert [record.outcome for record in proxy.records] == [Outcome.CANCELLED]


async def test_a_request_that_is_cancelled() -> None:
    async with running(settings(step_time=StepTimeModel())) as slow, proxying(url_of(slow)) as proxy:
        async with client_of(proxy.base_url) as sdk:
            call = asyncio.ensure_future(
                sdk.chat.completions.create(**CHAT | {"max_tokens": 3000}, extra_body={"ignore_eos": True})
            )
            await until(lambda: proxy.services.dispatcher.gate.open_requests == 1, "a request at the replica")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        await proxy.until_idle(slow)


class Attempts(httpx.AsyncBaseTransport):
    """Counts what the SDK sends, and when."""

    def __init__(self) -> None:
        self.inner = httpx.AsyncHTTPTransport()
        self.sent_s: list[float] = []
        self.statuses: list[int] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.sent_s.append(time.monotonic())
        response = await self.inner.handle_async_request(request)
        self.statuses.append(response.status_code)
        return response

    async def aclose(self) -> None:
        await self.inner.aclose()


async def full(proxy: RunningProxy) -> list[Any]:
    """Fill the pool of a proxy whose queue holds nobody."""
    exchanges: list[Any] = []
    while not proxy.records:
        exchanges.append(await proxy.wire.start_chat(max_tokens=1800, ignore_eos=True, stream=True))
        await until(lambda: proxy.records or proxy.services.dispatcher.gate.open_requests == len(exchanges))
    return exchanges


async def test_the_sdk_comes_back_when_it_is_told_to() -> None:
    chosen = settings(engine={"num_gpu_blocks": 129, "max_model_len": 2048}, step_time=StepTimeModel())
    policy = {"queue": {"requests_max": 0}}
    async with running(chosen) as slow, proxying(url_of(slow), policy=policy) as proxy:
        exchanges = await full(proxy)
        attempts = Attempts()
        async with (
            httpx.AsyncClient(transport=attempts) as http,
            client_of(proxy.base_url, max_retries=1, http_client=http) as sdk,
        ):
            with pytest.raises(openai.RateLimitError) as refused:
                await sdk.chat.completions.create(**CHAT | {"max_tokens": 1800}, extra_body={"ignore_eos": True})
        assert attempts.statuses == [429, 429]
        told_s = int(refused.value.response.headers["retry-after-ms"]) / 1000
        waited_s = attempts.sent_s[1] - attempts.sent_s[0]
        assert waited_s >= 1.0, told_s  # kvgate's least advice; the SDK's own back-off would be half a second at most
        assert refused.value.code == "queue_full"
        assert refused.value.type == "rate_limit_error"

        for exchange in exchanges:
            await exchange.leave()
        await proxy.until_idle(slow)


async def test_the_sdk_gets_its_answer_on_its_second_try() -> None:
    chosen = settings(engine={"num_gpu_blocks": 129, "max_model_len": 2048}, step_time=StepTimeModel())
    async with running(chosen) as slow, proxying(url_of(slow), policy={"queue": {"requests_max": 0}}) as proxy:
        exchanges = await full(proxy)
        refusals = len(proxy.records)
        async with client_of(proxy.base_url, max_retries=2) as sdk:
            call = asyncio.ensure_future(sdk.chat.completions.create(**CHAT | {"max_tokens": 500}))
            await until(lambda: len(proxy.records) == refusals + 1, "a refusal")
            for exchange in exchanges:
                await exchange.leave()
            assert (await call).choices
        await proxy.until_idle(slow)


async def test_the_sdk_does_not_repeat_what_can_never_fit(proxy: RunningProxy) -> None:
    attempts = Attempts()
    async with httpx.AsyncClient(transport=attempts) as http, client_of(proxy.base_url, max_retries=3, http_client=http) as sdk:
        with pytest.raises(openai.BadRequestError):
            await sdk.completions.create(**COMPLETION, prompt=[7] * 5000)
        with pytest.raises(openai.NotFoundError):
            await sdk.chat.completions.create(**CHAT | {"model": "other"})
    assert attempts.statuses == [400, 404]
