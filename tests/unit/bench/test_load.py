"""What the load generator makes of answers, with an upstream and a clock of the test's own."""

import asyncio
from collections.abc import Callable
from math import inf

import pytest

from proxy.advise.result_file import RequestSample
from proxy.bench.load import LoadRequest, Tally, run_load, send
from proxy.ports import Headers, UpstreamError

CHUNK = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
USAGE = b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}\n\n'
DONE = b"data: [DONE]\n\n"


class StepClock:
    """Every reading is a second later than the one before."""

    def __init__(self) -> None:
        self.readings = 0

    def now_s(self) -> float:
        self.readings += 1
        return float(self.readings)

    def wall_s(self) -> float:
        return 0.0


class Response:
    def __init__(self, pieces: list[bytes | UpstreamError], status: int = 200, headers: Headers | None = None) -> None:
        self.status = status
        self.headers = headers or []
        self.closed = False
        self._pieces = iter([*pieces, b""])

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        piece = next(self._pieces)
        if isinstance(piece, UpstreamError):
            raise piece
        return piece

    def close(self) -> None:
        self.closed = True


class Upstream:
    def __init__(self, answer: Callable[[], Response]) -> None:
        self.answer = answer
        self.sent: list[tuple[str, bytes]] = []
        self.responses: list[Response] = []
        self.open_now = self.open_most = 0

    async def open(self, base_url: str, method: bytes, target: bytes, headers: Headers, body: bytes) -> Response:
        assert (method, target) == (b"POST", b"/v1/chat/completions")
        assert (b"content-type", b"application/json") in headers
        self.sent.append((base_url, body))
        self.responses.append(self.answer())
        return self.responses[-1]

    async def aclose(self) -> None:
        raise AssertionError("the load does not own the client")


async def sample_of(
    *pieces: bytes | UpstreamError, status: int = 200, headers: Headers | None = None, planned_s: float | None = None
) -> RequestSample:
    upstream = Upstream(lambda: Response(list(pieces), status, headers))
    sample = await send(upstream, "http://r", LoadRequest(b"{}"), StepClock(), planned_s=planned_s)
    assert upstream.responses[0].closed
    return sample


async def test_a_whole_stream_ends_with_its_last_token() -> None:
    sample = await sample_of(CHUNK, CHUNK, CHUNK, USAGE + DONE)
    # Sent at 1, tokens at 2, 3 and 4; usage says 5 tokens.
    assert (sample.outcome, sample.sent_s, sample.first_token_s, sample.ended_s) == ("completed", 1.0, 2.0, 4.0)
    assert (sample.prompt_tokens, sample.output_tokens, sample.tpot_s) == (3, 5, 0.5)
    assert sum(sample.itl_counts.values()) == 2


async def test_usage_in_the_event_of_the_last_token_is_a_token_and_usage_alone_is_none() -> None:
    both = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n' + USAGE + DONE
    assert sum((await sample_of(CHUNK, CHUNK, both)).itl_counts.values()) == 2
    assert sum((await sample_of(CHUNK, CHUNK, USAGE, DONE)).itl_counts.values()) == 1


async def test_events_that_come_together_are_chunks_without_a_gap() -> None:
    sample = await sample_of(CHUNK, CHUNK * 3, CHUNK * 2 + USAGE + DONE)
    assert sum(sample.itl_counts.values()) == 5
    assert sample.itl_counts[0] == 3
    assert (sample.first_token_s, sample.ended_s) == (2.0, 4.0)


async def test_latency_counts_from_the_plan_and_not_from_a_late_client() -> None:
    sample = await sample_of(CHUNK, USAGE + DONE, planned_s=-9.0)
    assert (sample.sent_s, sample.ttft_s) == (1.0, 11.0)


async def test_an_honest_refusal_is_shed_and_any_other_is_a_failure() -> None:
    headers: Headers = [(b"x-kvgate-outcome", b"queue_timeout")]
    shed = await sample_of(b"{}", status=429, headers=headers)
    assert (shed.outcome, shed.error, shed.status) == ("shed", "429 queue_timeout", 429)
    assert (await sample_of(b"{}", status=503, headers=[(b"Retry-After", b"2")])).outcome == "shed"
    assert (await sample_of(b"busy", status=503)).outcome == "failed"
    failed = await sample_of(b'{"er', b'ror":1}', status=502, headers=[(b"x-kvgate-outcome", b"upstream_failed")])
    assert (failed.outcome, failed.error) == ("failed", '502 {"error":1}')


async def test_a_stream_that_breaks_is_a_failure() -> None:
    assert (await sample_of(CHUNK)).error == "the stream was cut off"
    assert (await sample_of(CHUNK, UpstreamError("reset", "gone"))).error == "reset: gone"
    told = await sample_of(CHUNK, b'data: {"error":{"message":"no"}}\n\n', DONE)
    assert (told.outcome, told.error) == ("failed", "the stream told an error")


@pytest.mark.parametrize(
    ("leave_after_s", "s_max", "until_s", "outcome", "error"),
    [
        (inf, 0.01, inf, "failed", "no end within 0.01 s"),
        (0.01, 1.0, inf, "cancelled", None),
        (1.0, 1.0, 1.01, "unfinished", None),
    ],
)
async def test_what_never_ends_is_given_up(
    leave_after_s: float, s_max: float, until_s: float, outcome: str, error: str | None
) -> None:
    class Silent(Response):
        async def read(self) -> bytes:
            await asyncio.Event().wait()
            raise AssertionError

    upstream = Upstream(lambda: Silent([]))
    request = LoadRequest(b"{}", leave_after_s=leave_after_s)
    sample = await send(upstream, "http://r", request, StepClock(), s_max=s_max, until_s=until_s)
    assert (sample.outcome, sample.error) == (outcome, error)
    assert upstream.responses[0].closed


async def test_the_loop_is_closed_and_takes_replicas_in_turn() -> None:
    upstream = Upstream(lambda: Response([CHUNK, USAGE + DONE]))

    class Counting(Response):
        async def read(self) -> bytes:
            upstream.open_most = max(upstream.open_most, sum(not response.closed for response in upstream.responses))
            return await super().read()

    upstream.answer = lambda: Counting([CHUNK, USAGE + DONE])
    bodies = [str(number).encode() for number in range(10)]
    tally = Tally(len(bodies))
    await run_load(upstream, ["http://a", "http://b"], bodies, clients=3, clock=StepClock(), tally=tally)
    assert sorted(body for _, body in upstream.sent) == bodies
    assert all(url == f"http://{'ab'[int(body) % 2]}" for url, body in upstream.sent)
    assert upstream.open_most == 3
    assert tally.count("completed") == 10
    assert tally.ended_s > tally.started_s
