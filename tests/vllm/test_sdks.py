"""The real OpenAI, Anthropic and LangChain clients get through kvgate from a real engine what they get from it directly.

Everything is greedy, so that two answers to one question are equal. The model's weights are random: what it says means nothing, but what a
grammar forces it to say (tools, structured output) is what clients parse.
"""

import base64
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import anthropic
import openai
import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from tests.bench.kvgate_process import KvgateProcess, kvgate_process
from tests.vllm.conftest import KV_BLOCKS, VllmFactory, VllmServer
from tests.vllm.test_transparent import POOLING

pytestmark = pytest.mark.vllm

HELLO = [{"role": "user", "content": "Tell me about the river."}]
CHAT: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "temperature": 0}
COMPLETION: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "temperature": 0}
RESPONSE: dict[str, Any] = {
    "model": "tiny",
    "input": "Tell me about the river.",
    "max_output_tokens": 12,
    "temperature": 0,
    "store": False,
}
MESSAGE: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 12}
SAMPLED = {"temperature": 1, "seed": 7}  # greedy choices would be one
SHAPE = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "paint", "description": "Paint it.", "parameters": SHAPE}}]
PAINT: Any = {"type": "function", "function": {"name": "paint"}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "colour", "schema": SHAPE, "strict": True}}
VOLATILE = {"id", "created", "created_at", "item_id", "response_id", "completed_at", "request_id"}


# Whitespace is what random weights like to go on with for ever.
TAKES_TOOLS = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *(
        "--structured-outputs-config",
        '{"backend": "xgrammar", "disable_any_whitespace": true}',
    ),
)


@pytest.fixture(scope="module")
def replica(vllm_server: VllmFactory) -> VllmServer:
    """An engine that takes tools."""
    return vllm_server(KV_BLOCKS, *TAKES_TOOLS)


@pytest.fixture(scope="module")
def gate(replica: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvgateProcess]:
    with kvgate_process(replica.base_url, replica.model_dir, tmp_path_factory.mktemp("kvgate")) as running:
        yield running


def plain(value: Any) -> Any:
    """Return an answer without what differs from one to the next."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in VOLATILE}
    return plain(value.model_dump()) if hasattr(value, "model_dump") else value


def told(chunks: Iterable[Any]) -> Any:
    """Put a stream's chunks together: where a delta ends is the engine's mood, what all of them say is not."""
    choices: dict[int, list[Any]] = {}
    usage = None
    for chunk in plain(list(chunks)):
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            said = choices.setdefault(choice["index"], ["", "", None])
            delta = choice.get("delta") or {}
            said[0] += choice.get("text") or delta.get("content") or ""
            said[1] += "".join(call["function"]["arguments"] or "" for call in delta.get("tool_calls") or ())
            said[2] = choice.get("finish_reason") or said[2]
    return [dict(sorted(choices.items())), usage]


def openai_of(base_url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{base_url}/v1", api_key="unused", max_retries=0, timeout=120)


def anthropic_of(base_url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=base_url, api_key="unused", max_retries=0, timeout=120)


def helped(sdk: openai.OpenAI, **fields: Any) -> list[Any]:
    """What the SDK's streaming helper makes of a chat: its kinds of events, and the answer put together."""
    with sdk.chat.completions.stream(**CHAT | fields) as stream:
        kinds = {event.type for event in stream}
        return [sorted(kinds), stream.get_final_completion()]


def responded(sdk: openai.OpenAI) -> list[Any]:
    """Kinds of events of a response, in their order, its text put together, and the whole that the last event tells."""
    events = plain(list(sdk.responses.create(**RESPONSE, stream=True)))
    kinds = list(dict.fromkeys(event["type"] for event in events))
    return [
        kinds,
        "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta"),
        events[-1]["response"],
    ]


def messaged(sdk: anthropic.Anthropic) -> list[Any]:
    """Kinds of events of a message, in their order, its text put together, and what the end of it tells."""
    events = plain(list(sdk.messages.create(**MESSAGE, extra_body={"temperature": 0}, stream=True)))
    kinds = list(dict.fromkeys(event["type"] for event in events))
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    return [kinds, text, [event for event in events if event["type"] in {"message_start", "message_delta"}]]


OPENAI: dict[str, Callable[[openai.OpenAI], Any]] = {
    "chat": lambda sdk: sdk.chat.completions.create(**CHAT),
    "chat, several choices": lambda sdk: sdk.chat.completions.create(**CHAT | SAMPLED, n=2),
    "chat, logprobs": lambda sdk: sdk.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2),
    "chat, stream": lambda sdk: told(sdk.chat.completions.create(**CHAT, stream=True)),
    "chat, stream with usage": lambda sdk: told(
        sdk.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
    ),
    "chat, streaming helper": lambda sdk: helped(sdk, max_tokens=60, response_format=FORMAT),
    "chat, required tools, in parallel": lambda sdk: sdk.chat.completions.create(
        **CHAT | {"max_tokens": 200}, tools=TOOLS, tool_choice="required", parallel_tool_calls=True
    ),
    "chat, structured": lambda sdk: sdk.chat.completions.create(**CHAT | {"max_tokens": 60}, response_format=FORMAT),
    "chat, a named tool": lambda sdk: sdk.chat.completions.create(**CHAT | {"max_tokens": 60}, tools=TOOLS, tool_choice=PAINT),
    "chat, a named tool, stream": lambda sdk: told(
        sdk.chat.completions.create(**CHAT | {"max_tokens": 60}, tools=TOOLS, tool_choice=PAINT, stream=True)
    ),
    "completion": lambda sdk: sdk.completions.create(**COMPLETION, prompt="one two"),
    "completion, several prompts and choices": lambda sdk: sdk.completions.create(
        **COMPLETION | SAMPLED, prompt=["one", "two words"], n=2
    ),
    "completion, token ids": lambda sdk: sdk.completions.create(**COMPLETION, prompt=[[5, 6], [7, 8, 9]]),
    "completion, echo and logprobs": lambda sdk: sdk.completions.create(**COMPLETION, prompt="one", echo=True, logprobs=1),
    "completion, stream": lambda sdk: told(sdk.completions.create(**COMPLETION, prompt=["one", "two"], stream=True)),
    "response": lambda sdk: sdk.responses.create(**RESPONSE),
    "response, stream": responded,
    "models": lambda sdk: [card.id for card in sdk.models.list()],
}
ANTHROPIC: dict[str, Callable[[anthropic.Anthropic], Any]] = {
    "message": lambda sdk: sdk.messages.create(**MESSAGE, extra_body={"temperature": 0}),
    "message, system": lambda sdk: sdk.messages.create(**MESSAGE, system="Be short.", extra_body={"temperature": 0}),
    "message, stream": messaged,
    "count of tokens": lambda sdk: sdk.messages.count_tokens(model="tiny", messages=HELLO),
}


@pytest.mark.parametrize("what", OPENAI)
def test_the_openai_sdk(replica: VllmServer, gate: KvgateProcess, what: str) -> None:
    answers = []
    for base_url in (replica.base_url, gate.base_url, gate.base_url):  # the second time kvgate knows the engine's fingerprint
        with openai_of(base_url) as sdk:
            answers.append(plain(OPENAI[what](sdk)))
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("what", ANTHROPIC)
def test_the_anthropic_sdk(replica: VllmServer, gate: KvgateProcess, what: str) -> None:
    answers = []
    for base_url in (replica.base_url, gate.base_url):
        with anthropic_of(base_url) as sdk:
            answers.append(plain(ANTHROPIC[what](sdk)))
    assert answers[0] == answers[1]


async def test_asynchronous_clients(replica: VllmServer, gate: KvgateProcess) -> None:
    answers = []
    for base_url in (replica.base_url, gate.base_url):
        async with (
            openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="unused", max_retries=0) as one,
            anthropic.AsyncAnthropic(base_url=base_url, api_key="unused", max_retries=0) as two,
        ):
            streamed = told([chunk async for chunk in await one.chat.completions.create(**CHAT, stream=True)])
            async with two.messages.stream(**MESSAGE, extra_body={"temperature": 0}) as stream:
                answers.append([streamed, plain(await stream.get_final_message())])
    assert answers[0] == answers[1]


def test_a_prompt_too_long_is_the_anthropic_sdks_bad_request(gate: KvgateProcess) -> None:
    with anthropic_of(gate.base_url) as sdk, pytest.raises(anthropic.BadRequestError, match="maximum context length") as refused:
        sdk.messages.create(**MESSAGE | {"messages": [{"role": "user", "content": "word " * 6000}]})
    body = refused.value.response.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"


def test_langchain(replica: VllmServer, gate: KvgateProcess) -> None:
    @tool
    def paint(colour: str) -> str:
        """Paint it."""
        return colour

    answers = []
    for base_url in (replica.base_url, gate.base_url):
        chat = ChatOpenAI(model="tiny", base_url=f"{base_url}/v1", api_key="unused", max_retries=0, temperature=0, max_tokens=60)
        structured = chat.with_structured_output(SHAPE | {"title": "colour"}, method="json_schema")
        called = chat.bind_tools([paint], tool_choice="paint").invoke("Paint the wall.")
        answers.append(
            [
                chat.invoke("hello").content,
                "".join(str(chunk.content) for chunk in chat.stream("hello")),
                chat.batch(["one", "two"])[1].content,
                structured.invoke("Which colour?"),
                [call["name"] for call in called.tool_calls],
            ]
        )
    assert answers[0] == answers[1]


def test_embeddings(vllm_server: VllmFactory, tmp_path_factory: pytest.TempPathFactory) -> None:
    server = vllm_server(256, *POOLING)
    ask = {"model": "tiny", "input": ["one two", "three"]}
    with kvgate_process(server.base_url, server.model_dir, tmp_path_factory.mktemp("pooling")) as running:
        found = []
        for base_url in (server.base_url, running.base_url):
            with openai_of(base_url) as sdk:
                whole = sdk.embeddings.create(**ask, encoding_format="float")
                coded = sdk.embeddings.create(**ask, encoding_format="base64")
                found.append([plain(whole), [base64.b64decode(str(item.embedding)) for item in coded.data]])
    assert found[0] == found[1]
    assert len(found[0][0]["data"]) == 2
