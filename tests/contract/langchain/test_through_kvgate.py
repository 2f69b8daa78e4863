"""LangChain's OpenAI client through kvgate: plain, streamed and batched calls, and errors that it knows how to read."""

from typing import Any

import openai
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI

from tests.integration.mock_harness import RunningMock
from tests.integration.serving.harness import RunningProxy

pytestmark = pytest.mark.asyncio(loop_scope="module")


def chat_of(server: RunningMock | RunningProxy, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        **{"model": "mock", "base_url": server.base_url, "api_key": "unused", "max_retries": 0, "max_tokens": 8} | options
    )


async def test_answers_are_equal(mock: RunningMock, proxy: RunningProxy) -> None:
    answers = []
    for server in (mock, proxy):
        chat = chat_of(server, stream_usage=True)
        whole = await chat.ainvoke("Tell me about the river.")
        chunks = [chunk async for chunk in chat.astream("Tell me about the river.")]
        batch = await chat.abatch(["one", "two"])
        usage = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
        answers.append(
            [whole.content, whole.usage_metadata, [chunk.content for chunk in chunks], usage, [one.content for one in batch]]
        )
    assert answers[0] == answers[1]
    assert answers[1][3]
    await proxy.until_idle(mock)


async def test_a_prompt_too_long_is_taken_for_one(mock: RunningMock, proxy: RunningProxy) -> None:
    """langchain-openai 1.7 looks for ``context_length_exceeded`` in the message, where no engine says it."""
    with pytest.raises(openai.BadRequestError, match="maximum context length") as direct:
        await chat_of(mock).ainvoke("word " * 6000)
    assert not isinstance(direct.value, ContextOverflowError)
    with pytest.raises(ContextOverflowError, match="maximum context length") as refused:
        await chat_of(proxy).ainvoke("word " * 6000)
    assert isinstance(refused.value, openai.BadRequestError)
    assert refused.value.code == "context_length_exceeded"


async def test_an_unknown_model_is_not_found(proxy: RunningProxy) -> None:
    with pytest.raises(openai.NotFoundError):
        await chat_of(proxy, model="other").ainvoke("hello")
