"""What the load generator makes of answers, with an upstream and a clock of the test's own."""

import asyncio
from collections.abc import Callable

from proxy.demo.load import Fate, RequestResult, Tally, run_load, send
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


async def result_of(*pieces: bytes | UpstreamError, status: int = 200, headers: Headers | None = None) -> RequestResult:
    upstream = Upstream(lambda: Response(list(pieces), status, headers))
    result = await send(upstream, "http://r", b"{}", StepClock())
    assert upstream.responses[0].closed
    return result


async def test_a_whole_stream_is_measured_from_sending() -> None:
    result = await result_of(CHUNK, CHUNK, USAGE + DONE)
    # Sent at 1, first token at 2, end at 3; usage says 5 tokens.
    assert result == RequestResult(Fate.COMPLETED, 5, 1.0, 0.25)


async def test_a_refusal_by_kvgate_is_shed_and_any_other_is_a_failure() -> None:
    headers: Headers = [(b"x-kvgate-outcome", b"queue_timeout")]
    assert await result_of(b"{}", status=429, headers=headers) == RequestResult(Fate.SHED, reason="429 queue_timeout")
    assert (await result_of(b"busy", status=503)).fate is Fate.FAILED
    failed = await result_of(b'{"er', b'ror":1}', status=502, headers=[(b"x-kvgate-outcome", b"upstream_failed")])
    assert failed == RequestResult(Fate.FAILED, reason='502 {"error":1}')


async def test_a_stream_that_breaks_is_a_failure() -> None:
    assert (await result_of(CHUNK)).reason == "the stream was cut off"
    assert (await result_of(CHUNK, UpstreamError("reset", "gone"))).reason == "reset: gone"
    told = await result_of(CHUNK, b'data: {"error":{"message":"no"}}\n\n', DONE)
    assert (told.fate, told.reason) == (Fate.FAILED, "the stream told an error")


async def test_what_never_ends_is_given_up() -> None:
    class Silent(Response):
        async def read(self) -> bytes:
            await asyncio.Event().wait()
            raise AssertionError

    upstream = Upstream(lambda: Silent([]))
    result = await send(upstream, "http://r", b"{}", StepClock(), s_max=0.01)
    assert result == RequestResult(Fate.FAILED, reason="no end within 0.01 s")
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
    assert tally.count(Fate.COMPLETED) == 10
    assert tally.ended_s > tally.started_s
