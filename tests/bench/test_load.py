"""The load generator tells apart what completed, was shed, failed and left, against a server that does each on demand."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.bench.load import Fate, LoadRequest, Record, percentile, run_load, summarise
from tests.bench.loads import LOADS, as_request, chat

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"length"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}\n\n'
PLAIN = b'{"choices":[{"index":0,"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":5}}'


def answer(body: bytes, status: str = "200 OK", fields: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n%b\r\n%b" % (status.encode(), len(body), fields, body)


ANSWERS = {
    "/stream": answer(EVENT + EVENT + LAST + USAGE + b"data: [DONE]\n\n"),
    "/cut": answer(EVENT + EVENT),
    "/error": answer(EVENT + b'data: {"error":{"message":"boom"}}\n\ndata: [DONE]\n\n'),
    "/plain": answer(PLAIN),
    "/half": answer(PLAIN[:-30]),
    "/shed": answer(b"{}", "429 Too Many", b"x-kvgate-outcome: queue_full\r\nretry-after: 3\r\n"),
    "/engine429": answer(b"{}", "429 Too Many"),
    "/fault": answer(b"oops", "500 Oops"),
}


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                target = head.split(b" ", 2)[1].decode()
                if target in ANSWERS:
                    writer.write(ANSWERS[target])
                await reader.readexactly(2)  # the body; a target without an answer is silent from here on
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("target", "fate", "tokens", "finish_reason"),
    [
        ("/stream", Fate.COMPLETED, 3, "length"),
        ("/cut", Fate.FAILED, 2, ""),
        ("/error", Fate.FAILED, 1, ""),
        ("/plain", Fate.COMPLETED, 5, "stop"),
        ("/half", Fate.FAILED, 0, ""),
        ("/shed", Fate.SHED, 0, ""),
        ("/engine429", Fate.FAILED, 0, ""),
        ("/fault", Fate.FAILED, 0, ""),
    ],
)
async def test_every_answer_has_its_fate(url: str, target: str, fate: Fate, tokens: int, finish_reason: str) -> None:
    stream = target not in {"/plain", "/half"}
    (record,), summary = await run_load(url, [LoadRequest(target, b"{}", stream)], 3)
    assert (record.fate, record.tokens, record.finish_reason) == (fate, tokens, finish_reason)
    assert (record.error == "") == (fate is Fate.COMPLETED)
    assert summary.as_json()[fate.value] == summary.requests == 1


async def test_a_refusal_keeps_the_advice(url: str) -> None:
    (record,), summary = await run_load(url, [LoadRequest("/shed", b"{}")], 1)
    assert (record.retry_after_s, record.outcome, summary.outcomes) == (3.0, "queue_full", {"queue_full": 1})


async def test_a_client_that_leaves_is_neither_failed_nor_completed(url: str) -> None:
    (record,), summary = await run_load(url, [LoadRequest("/silent", b"{}", leave_after_s=0.01)], 1)
    assert (record.fate, summary.cancelled, summary.failed) == (Fate.CANCELLED, 1, 0)


async def test_a_server_that_is_not_there_is_a_failure() -> None:
    (record,), summary = await run_load("http://127.0.0.1:1", [LoadRequest("/stream", b"{}")], 1)
    assert record.error.startswith("connect:")
    assert summary.failed == 1


async def test_every_request_is_sent_once_and_told_of(url: str) -> None:
    told: list[Record] = []
    records, summary = await run_load(url, [LoadRequest("/stream", b"{}")] * 50, 7, told.append)
    assert told == records
    assert (summary.completed, summary.output_tokens, summary.prompt_tokens_mean) == (50, 150, 9.0)


def test_latencies_are_those_of_completed_streams() -> None:
    done = Record(0.0, 1.0, 3.0, tokens=5, fate=Fate.COMPLETED)
    plain = Record(0.0, None, 9.0, tokens=5, fate=Fate.COMPLETED, stream=False)
    cut = Record(0.0, 5.0, 90.0, tokens=5)
    summary = summarise([done, plain, cut], 10.0)
    assert (summary.ttft_p99_s, summary.tpot_p99_s, summary.tokens_per_s) == (1.0, 0.5, 1.5)


def test_percentiles_are_values_that_occurred() -> None:
    assert [percentile(range(1, 101), share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert percentile([], 0.5) is None


@pytest.mark.parametrize("load", LOADS)
def test_loads_are_seeded_and_share_no_prefix(load: str) -> None:
    requests, same, other = LOADS[load]("m", 1), LOADS[load]("m", 1), LOADS[load]("m", 2)
    assert requests == same != other
    assert len({request.body for request in requests}) == len(requests)


def test_a_stream_asks_for_usage_and_a_plain_request_does_not() -> None:
    assert b"include_usage" in as_request(*chat("m", "a")).body
    assert b"include_usage" not in as_request(*chat("m", "a", stream=False)).body
