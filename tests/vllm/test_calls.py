"""Every route that takes KV on the real engine: its prompts are counted as the engine counts them, its answers read, its leases ended.

The engine is the suite's own, or the one at ``KVGATE_VLLM_URL``, which must be started as ``FLAGS`` and ``STORE`` say.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.adapters.ratio_counter import RatioCounter
from proxy.adapters.tokenizer_files import open_tokenizer
from proxy.adapters.tokenizer_pool import TokenizerPool
from proxy.core.demand import CountSource
from proxy.core.outcome import Outcome
from proxy.wire.call import CallKind
from proxy.wire.read_call import CALL_ROUTES, read_call
from tests.integration.serving.harness import Reply, RunningProxy, proxying
from tests.vllm.call_bodies import ALL, ASKS
from tests.vllm.conftest import HOME, KV_BLOCKS, VllmFactory

pytestmark = pytest.mark.vllm

FLAGS = ("--enable-scale-out", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
STORE = "VLLM_ENABLE_RESPONSES_API_STORE"
ROUTES = {kind: path for path, kind in CALL_ROUTES.items()}


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the address of an engine that keeps responses."""
    url = os.environ.get("KVGATE_VLLM_URL")
    if url:
        yield url
        return
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(STORE, "1")
        serve: VllmFactory = request.getfixturevalue("vllm_server")
        yield serve(KV_BLOCKS, *FLAGS).base_url


@pytest.fixture
async def proxy(engine: str) -> AsyncIterator[RunningProxy]:
    async with proxying(engine, tokenizer=False) as running:
        yield running
        await running.until_idle()
        assert not running.services.guard.tripped
        assert not [record for record in running.records if record.outcome is Outcome.INTERNAL]


async def post(proxy: RunningProxy, path: str, **fields: Any) -> Reply:
    return await proxy.wire.request("POST", path, json.dumps({"model": "tiny"} | fields).encode())


async def test_prompts_count_as_the_engine_counts_them(engine: str) -> None:
    model = Path(os.environ.get("KVGATE_VLLM_MODEL_DIR") or HOME / "model")
    pool = TokenizerPool(open_tokenizer(str(model), wall_s=lambda: 1.8e9), backlog_max=1000, remote=None, ratio=RatioCounter())
    different = []
    async with httpx.AsyncClient(base_url=engine, timeout=300) as client:
        for kind, name, fields in ALL:
            body = json.dumps({"model": "tiny"} | fields).encode()
            answer = await client.post(ROUTES[kind], content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 200, (kind, name, answer.text[:500])
            usage = answer.json()["usage"]
            count = await pool.count(read_call(kind, body), block_size=32, context_tokens_max=4096)
            own = sum(part.tokens for part in count.parts)
            if own != usage.get("prompt_tokens", usage.get("input_tokens")) or count.source is not CountSource.EXACT:
                different.append((kind, name, own, usage, count.source, pool.last_error))
    await pool.aclose()
    assert different == []


@pytest.mark.parametrize(("kind", "name", "fields"), [one for one in ALL if one[1] in {"plain", "text", "two", "ids"}])
async def test_whole_answers_settle_their_leases(proxy: RunningProxy, kind: CallKind, name: str, fields: dict[str, Any]) -> None:
    reply = await post(proxy, ROUTES[kind], **fields)
    assert reply.status == 200, (name, reply)
    (record,) = proxy.records
    assert record.prompt_tokens == record.prompt_tokens_reported
    assert record.count_source is CountSource.EXACT
    assert record.output_tokens == len(record_parts(fields))
    assert reply.headers["x-kvgate-outcome"] == "completed"


def record_parts(fields: dict[str, Any]) -> list[Any]:
    """What yields one output token each."""
    if "items" in fields:
        return list(fields["items"])
    return list(fields["messages"]) if "messages" in fields and isinstance(fields["messages"][0], list) else [fields]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/messages", {"messages": [ASKS], "max_tokens": 20}),
        ("/v1/responses", {"input": "Tell me.", "max_output_tokens": 20}),
        ("/inference/v1/generate", {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 20, "ignore_eos": True}}),
    ],
)
async def test_streams_settle_their_leases(proxy: RunningProxy, path: str, fields: dict[str, Any]) -> None:
    reply = await post(proxy, path, stream=True, **fields)
    assert reply.status == 200
    assert b"error" not in reply.body
    (record,) = proxy.records
    assert record.prompt_tokens == record.prompt_tokens_reported
    assert 1 <= (record.output_tokens or 0) <= 20
    assert record.ttft_s is not None
    if path.startswith("/inference"):
        assert record.output_tokens == 20
        assert b'"usage":{' not in reply.body  # asked for by us, and taken out again


async def test_counting_takes_no_lease(proxy: RunningProxy) -> None:
    body = {"messages": [ASKS]}
    counted = (await post(proxy, "/v1/messages/count_tokens", **body)).json()["input_tokens"]
    assert proxy.records == []
    assert (await post(proxy, "/v1/messages", max_tokens=1, **body)).json()["usage"]["input_tokens"] == counted


async def test_refusals_have_the_shape_of_their_api(proxy: RunningProxy) -> None:
    huge = {"messages": [{"role": "user", "content": "word " * 5000}], "max_tokens": 1}
    refused = await post(proxy, "/v1/messages", **huge)
    assert (refused.status, refused.json()["type"], refused.json()["error"]["type"]) == (400, "error", "invalid_request_error")
    assert "maximum context length" in refused.json()["error"]["message"]
    refused = await post(proxy, "/v1/responses", input="word " * 5000)
    assert (refused.status, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_conversation_that_the_engine_keeps(proxy: RunningProxy) -> None:
    first = (await post(proxy, "/v1/responses", input="Hello", max_output_tokens=10)).json()
    assert (await proxy.wire.request("GET", f"/v1/responses/{first['id']}")).json()["id"] == first["id"]
    second = await post(proxy, "/v1/responses", input="And?", max_output_tokens=10, previous_response_id=first["id"])
    assert second.status == 200
    record = proxy.records[-1]
    assert record.count_source is CountSource.RATIO
    assert (record.prompt_tokens or 0) >= (record.prompt_tokens_reported or 0) > first["usage"]["input_tokens"]
    unknown = await post(proxy, "/v1/responses", input="And?", previous_response_id="resp_none")
    assert unknown.status == 404
    assert (await proxy.wire.request("GET", "/v1/responses/resp_none")).status == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_in_the_background_holds_its_place(proxy: RunningProxy, stream: bool) -> None:
    fields = {"input": "Hello", "max_output_tokens": 1500, "background": True, "stream": stream, "ignore_eos": True}
    exchange = await proxy.wire.open("POST", "/v1/responses", json.dumps({"model": "tiny"} | fields).encode())
    if stream:  # leave in the middle: the engine works on
        async with asyncio.timeout(60):
            await exchange.reader.readuntil(b"output_text.delta")
        await exchange.leave()
    else:
        assert (await exchange.reply()).json()["status"] in {"queued", "in_progress"}
    async with asyncio.timeout(60):
        while not proxy.services.stored.background:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    leases = proxy.services.dispatcher.gate.leases
    assert leases.started - leases.ended == 1
    async with asyncio.timeout(120):
        while proxy.services.stored.background:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert leases.started == leases.ended


async def test_a_cancelled_one_gives_its_place_back(proxy: RunningProxy) -> None:
    kept = (await post(proxy, "/v1/responses", input="Hi", max_output_tokens=3000, background=True, ignore_eos=True)).json()["id"]
    cancelled = await proxy.wire.request("POST", f"/v1/responses/{kept}/cancel")
    assert (cancelled.status, cancelled.json()["status"]) == (200, "cancelled")
    await proxy.until_idle()
