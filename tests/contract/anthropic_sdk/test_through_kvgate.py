"""The real Anthropic SDK reads kvgate's refusals as its own API's, and obeys what they tell it."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx2
import pytest

from proxy.core.outcome import Outcome
from proxy.sim.step_time import StepTimeModel
from tests.contract.openai_sdk.test_through_kvgate import full
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import RunningProxy, answer_like_vllm, proxying, url_of
from tests.support.upstream_servers import Peer, ScriptedUpstream


@dataclass(slots=True)
class Attempts:
    """What the SDK sent, and when."""

    sent_s: list[float] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    async def sending(self, _: httpx2.Request) -> None:
        self.sent_s.append(time.monotonic())

    async def answered(self, response: httpx2.Response) -> None:
        self.statuses.append(response.status_code)


MESSAGE: dict[str, Any] = {
    "model": "mock",
    "max_tokens": 1800,
    "messages": [{"role": "user", "content": "Tell me about the river."}],
}


def client_of(proxy: RunningProxy, attempts: Attempts, retries: int) -> anthropic.AsyncAnthropic:
    http = httpx2.AsyncClient(event_hooks={"request": [attempts.sending], "response": [attempts.answered]})
    return anthropic.AsyncAnthropic(
        base_url=f"http://127.0.0.1:{proxy.wire.port}", api_key="unused", max_retries=retries, timeout=30, http_client=http
    )


async def test_it_comes_back_when_it_is_told_to() -> None:
    chosen = settings(engine={"num_gpu_blocks": 129, "max_model_len": 2048}, step_time=StepTimeModel())
    async with running(chosen) as slow, proxying(url_of(slow), policy={"queue": {"requests_max": 0}}) as proxy:
        exchanges = await full(proxy)
        attempts = Attempts()
        async with client_of(proxy, attempts, retries=1) as sdk:
            with pytest.raises(anthropic.RateLimitError) as refused:
                await sdk.messages.create(**MESSAGE)
        assert attempts.statuses == [429, 429]
        assert (
            attempts.sent_s[1] - attempts.sent_s[0] >= 1.0
        )  # kvgate's least advice; its own back-off would be half a second at most
        body = refused.value.response.json()
        assert (body["type"], body["error"]["type"]) == ("error", "rate_limit_error")
        assert refused.value.response.headers["x-kvgate-outcome"] == Outcome.QUEUE_FULL
        for exchange in exchanges:
            await exchange.leave()
        await proxy.until_idle(slow)


async def test_it_does_not_repeat_what_can_never_be_served() -> None:
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy:
        attempts = Attempts()
        async with client_of(proxy, attempts, retries=3) as sdk:
            with pytest.raises(anthropic.BadRequestError, match="maximum context length"):
                await sdk.messages.create(**MESSAGE | {"messages": [{"role": "user", "content": "word " * 6000}]})
            with pytest.raises(anthropic.NotFoundError):
                await sdk.messages.create(**MESSAGE | {"model": "other"})
        assert attempts.statuses == [400, 404]


async def test_a_stream_cut_off_is_its_error_and_not_a_short_answer() -> None:
    """The replica dies in the middle: what came is not the whole, and the SDK must know."""
    said = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "mock",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }
    start = {"type": "message_start", "message": said | {"usage": {"input_tokens": 3, "output_tokens": 0}}}
    event = f"event: message_start\ndata: {json.dumps(start)}\n\n".encode()

    async def die(peer: Peer) -> None:
        head, _ = await peer.request()
        if b"user-agent: kvgate/" in head:
            await answer_like_vllm(peer, head)
            return
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        await peer.send(head + b"%x\r\n%b\r\n" % (len(event), event))
        peer.reset()

    async def read(sdk: anthropic.AsyncAnthropic) -> None:
        async with sdk.messages.stream(**MESSAGE) as stream:
            async for _ in stream:
                pass

    async with ScriptedUpstream.running(die) as replica, proxying(replica.url, policy={"mode": "off"}) as proxy:
        async with client_of(proxy, Attempts(), retries=0) as sdk:
            with pytest.raises(anthropic.APIStatusError, match="failed in the middle"):
                await read(sdk)
        await proxy.until_idle()
