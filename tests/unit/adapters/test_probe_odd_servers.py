"""The capability probe before servers that are odd, dead, endless or several."""

import asyncio
from collections.abc import AsyncIterator

import httpcore
import httpx
import pytest

from proxy.adapters.control_http import BODY_BYTES_MAX, ControlHttp
from proxy.adapters.probe import FRESH_CONNECTIONS, probe_replica
from proxy.core.epoch import EpochJudge
from proxy.ports.replicas import ReplicaUnreachableError
from proxy.wire.report import describe
from tests.support.upstream_servers import Peer, ScriptedUpstream
from tests.unit.adapters.fake_vllm import FakeVllm, SteppingClock, recorded
from tests.unit.adapters.probing import URL, failure, probe


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, content=b"not json"),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={"vllm_config": "text"}),
        httpx.Response(200, json={"vllm_config": {"scheduler_config": None, "cache_config": {"block_size": True}}}),
        httpx.Response(500),
    ],
)
async def test_odd_server_info_is_ignored(answer: httpx.Response) -> None:
    facts = (await probe(FakeVllm(recorded("0.32.0"), special={"/server_info": lambda _: answer}))).facts
    assert (facts.sequences_max, facts.block_size) == (None, 32)


async def test_a_hanging_server_info_costs_only_itself() -> None:
    def hang(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("slow")

    assert (await probe(FakeVllm(recorded("0.32.0"), special={"/server_info": hang}))).facts.block_size == 32


@pytest.mark.parametrize("status", [401, 403])
async def test_missing_credentials_name_the_policy_key(status: int) -> None:
    fake = FakeVllm(recorded("0.32.0"), special={"/v1/models": lambda _: httpx.Response(status, json={"error": "Unauthorized"})})
    message = await failure(fake)
    assert "api_key_env" in message
    assert "name the variable" in message
    assert "not accepted" in await failure(fake, headers={"Authorization": "Bearer wrong"})


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, content=b"<html><body>Welcome to nginx!", headers={"content-type": "text/html"}),
        httpx.Response(404, json={"detail": "Not Found"}),
        httpx.Response(200, json={"object": "list", "data": []}),
        httpx.Response(200, json={"data": [{"name": 3}, "x"]}),
        httpx.Response(200, json=["tiny"]),
        httpx.Response(200, content=b"\xff\xfe"),
    ],
)
async def test_something_else_at_the_url(answer: httpx.Response) -> None:
    message = await failure(FakeVllm(recorded("0.32.0"), special={"/v1/models": lambda _: answer}))
    assert f"{URL}/v1/models answered {answer.status_code}" in message
    assert "without /v1" in message


async def test_a_dead_engine() -> None:
    message = await failure(FakeVllm(recorded("0.32.0"), special={"/health": lambda _: httpx.Response(503)}))
    assert "/health answered 503" in message
    assert "dead or still starting" in message


async def test_a_server_without_health_or_version_route_is_taken() -> None:
    gone = {path: lambda _: httpx.Response(404) for path in ("/health", "/version")}
    facts = (await probe(FakeVllm(recorded("0.32.0"), special=gone))).facts
    assert facts.version is None
    assert "of unknown version" in describe(facts, None)[0]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpx.ConnectError("All connection attempts failed"), "Check that vLLM is running there"),
        (httpx.ReadTimeout("x"), "no complete answer within 5 s"),
        (httpx.RemoteProtocolError("illegal request line"), "illegal request line"),
    ],
)
async def test_unreachable(error: httpx.TransportError, words: str) -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        raise error

    message = await failure(FakeVllm(b"", special={"/health": fail}))
    assert words in message
    assert f"{URL}/health" in message


async def test_an_odd_url() -> None:
    assert "must begin with http:// or https://" in await failure(FakeVllm(b""), url="replica:8000")
    assert "port are right" in await failure(FakeVllm(b""), url="http://replica:port")


async def test_an_answer_without_end_is_cut_off() -> None:
    sent = 0

    async def flood() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b"x" * 100_000

    fake = FakeVllm(b"", special={"/metrics": lambda _: httpx.Response(200, content=flood())})
    assert f"exceeds {BODY_BYTES_MAX:,} bytes" in await failure(fake)
    assert sent * 100_000 <= BODY_BYTES_MAX + 200_000


async def test_an_answer_that_drips_is_cut_off() -> None:
    never = asyncio.Event()

    async def drip() -> AsyncIterator[bytes]:
        yield b"# HELP"
        await never.wait()

    fake = FakeVllm(b"", special={"/metrics": lambda _: httpx.Response(200, content=drip())})
    assert "no complete answer within 0.05 s" in await failure(fake, timeout_s=0.05)


async def test_a_server_that_takes_the_connection_is_late_and_one_that_does_not_is_gone() -> None:
    """Over real connections, the second of which never come about."""

    class NoNetwork(httpcore.AnyIOBackend):
        async def connect_tcp(self, *_: object, **__: object) -> httpcore.AsyncNetworkStream:
            await asyncio.Event().wait()
            raise AssertionError

    async def late(url: str, transport: httpx.AsyncHTTPTransport) -> bool:
        http = ControlHttp(url, SteppingClock(), headers={}, timeout_s=0.2, transport=transport)
        with pytest.raises(ReplicaUnreachableError, match=r"no complete answer within 0\.2 s") as caught:
            await http.get("/health", fresh=True)
        await http.aclose()
        return caught.value.late

    async with ScriptedUpstream.running(Peer.until_gone) as silent:
        assert await late(silent.url, httpx.AsyncHTTPTransport())
    nowhere = httpx.AsyncHTTPTransport()
    nowhere._pool._network_backend = NoNetwork()
    assert not await late(URL, nowhere)


async def test_path_prefix_and_headers_are_kept() -> None:
    def prefixed(request: httpx.Request) -> httpx.Response:
        assert request.url.path.startswith("/vllm/")
        assert request.headers["authorization"] == "Bearer k"
        assert request.headers["accept-encoding"] == "identity"
        url = request.url.copy_with(path=request.url.path.removeprefix("/vllm"))
        return fake.answer(httpx.Request("GET", url))

    fake = FakeVllm(recorded("0.32.0"))
    http = ControlHttp(
        f"{URL}/vllm/",
        SteppingClock(),
        headers={"authorization": "Bearer k"},
        timeout_s=5.0,
        transport=httpx.MockTransport(prefixed),
    )
    assert (await probe_replica(http, EpochJudge(), kv_blocks=None)).facts.models == ("tiny", "my-lora")
    await http.aclose()


async def test_several_engines_behind_one_url() -> None:
    turn = 0

    def alternate(_: httpx.Request) -> bytes:
        nonlocal turn
        turn += 1
        start = b"process_start_time_seconds %d\n" % (1_750_000_000 + turn % 2)
        return recorded("0.32.0").replace(b"process_start_time_seconds 1.79596915255e+09\n", start)

    fake = FakeVllm(b"", next_metrics=alternate)
    probed = await probe(fake)
    assert probed.facts.several_engines_behind
    assert not probed.new_epoch
    (warning,) = probed.facts.warnings
    assert "only observed" in warning
    fresh = [request for request in fake.requests if request.headers.get("connection") == "close"]
    assert len(fresh) == FRESH_CONNECTIONS


async def test_several_engines_are_found_when_only_the_last_connection_differs() -> None:
    def last(_: httpx.Request) -> bytes:
        count = sum(path.startswith("/metrics") for path in fake.paths())
        start = b"process_start_time_seconds %d\n" % (1_750_000_000 + (count == FRESH_CONNECTIONS + 2))
        return recorded("0.32.0").replace(b"process_start_time_seconds 1.79596915255e+09\n", start)

    fake = FakeVllm(b"", next_metrics=last)
    assert (await probe(fake)).facts.several_engines_behind


async def test_session_cookies_do_not_pin_fresh_connections() -> None:
    def sticky(request: httpx.Request) -> httpx.Response:
        fake.requests.append(request)
        headers = {"set-cookie": "route=pod-1; Path=/", "content-type": "text/plain"}
        return httpx.Response(200, content=recorded("0.32.0"), headers=headers)

    fake = FakeVllm(b"", special={"/metrics": sticky, "/metrics/": sticky})
    await probe(fake)
    fresh = [request for request in fake.requests if request.headers.get("connection") == "close"]
    assert len(fresh) >= FRESH_CONNECTIONS
    assert not any("cookie" in request.headers for request in fresh)
