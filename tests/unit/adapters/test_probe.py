"""The capability probe: what it finds across versions, and the sentence it leaves when something is odd."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from proxy.adapters.probe import (
    BODY_BYTES_MAX,
    FRESH_CONNECTIONS,
    METRICS_FILTERED,
    METRICS_WHOLE,
    ControlHttp,
    Probed,
    probe_replica,
)
from proxy.core.epoch import EpochJudge
from proxy.core.replica import ReplicaFacts
from proxy.ports import ReplicaUnreachableError
from proxy.wire.report import describe
from tests.unit.adapters.fake_vllm import MODELS, FakeVllm, SteppingClock, recorded

URL = "http://replica:8000"


async def probe(
    fake: FakeVllm, *, kv_blocks: int | None = None, url: str = URL, headers: dict[str, str] | None = None, timeout_s: float = 5.0
) -> Probed:
    http = ControlHttp(url, SteppingClock(), headers=headers or {}, timeout_s=timeout_s, transport=fake.transport)
    try:
        return await probe_replica(http, EpochJudge(), kv_blocks=kv_blocks)
    finally:
        await http.aclose()


async def failure(fake: FakeVllm, **kwargs: object) -> str:
    with pytest.raises(ReplicaUnreachableError) as caught:
        await probe(fake, **kwargs)  # type: ignore[arg-type]
    return str(caught.value)


async def test_032() -> None:
    probed = await probe(FakeVllm(recorded("0.32.0")))
    assert probed.facts == ReplicaFacts(
        url=URL,
        models=("tiny", "my-lora"),
        context_tokens_max=4096,
        block_size=32,
        kv_blocks_total=256,
        version="0.32.0",
        usage_metric="vllm:kv_cache_usage_perc",
        kv_cache_size_tokens=8192,
    )
    assert probed.scrape_path == METRICS_FILTERED
    assert not probed.new_epoch


async def test_data_parallel() -> None:
    facts = (await probe(FakeVllm(recorded("0.32.0-dp2")))).facts
    assert (facts.engines, facts.kv_blocks_total, facts.kv_cache_size_tokens, facts.warnings) == (2, 512, 8192, ())
    assert any("2 engines, separate pools; usable per engine 255 = 8,160 tokens" in line for line in describe(facts, None))


@pytest.mark.parametrize(
    ("version", "usage", "blocks", "caching"),
    [
        ("0.6.6", "vllm:gpu_cache_usage_perc", 2000, False),
        ("0.8.5", "vllm:gpu_cache_usage_perc", None, True),
        ("0.9.2", "vllm:kv_cache_usage_perc", 2000, True),
    ],
)
async def test_old_versions(version: str, usage: str, blocks: int | None, caching: bool) -> None:
    facts = (await probe(FakeVllm(recorded(version), version=version))).facts
    assert (facts.usage_metric, facts.kv_blocks_total, facts.block_size, facts.prefix_caching) == (usage, blocks, 16, caching)
    assert any("older than 0.10.2" in warning for warning in facts.warnings)
    assert any("does not know how many KV blocks" in warning and "--kv-blocks" in warning for warning in facts.warnings) is (
        blocks is None
    )


@pytest.mark.parametrize("name", ["0.11.2-pid", "0.32.0-two-api-servers"])
async def test_several_api_servers_cannot_filter(name: str) -> None:
    probed = await probe(FakeVllm(recorded(name), filters=False))
    assert probed.scrape_path == METRICS_WHOLE
    assert probed.facts.log_stats
    assert probed.facts.warnings == ()


async def test_log_stats_off() -> None:
    facts = (await probe(FakeVllm(recorded("0.32.0-disable-log-stats")))).facts
    assert not facts.log_stats
    assert (facts.kv_blocks_total, facts.block_size, facts.usage_metric) == (None, None, None)
    (warning,) = facts.warnings
    assert "--disable-log-stats" in warning
    assert "--kv-blocks" in warning
    assert "kv_blocks" in warning
    report = "\n".join(describe(facts, None))
    assert "own accounting only" in report
    assert "size unknown" in report
    assert warning in report


async def test_log_stats_off_with_configured_blocks() -> None:
    facts = (await probe(FakeVllm(recorded("0.32.0-disable-log-stats")), kv_blocks=300)).facts
    assert facts.kv_blocks_total == 300
    (warning,) = facts.warnings
    assert "--kv-blocks" not in warning
    assert "300 blocks (set by kv_blocks), 1 engine; usable per engine 299" in "\n".join(describe(facts, 300))


async def test_configured_blocks_go_first_and_the_difference_is_told() -> None:
    facts = (await probe(FakeVllm(recorded("0.32.0")), kv_blocks=200)).facts
    assert facts.kv_blocks_total == 200
    (warning,) = facts.warnings
    assert "200" in warning
    assert "256" in warning


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [(404, "application/json", b"{}"), (200, "text/html", b"<html>nope</html>"), (200, "text/plain", b"")],
)
async def test_no_metrics_at_all(status: int, kind: str, body: bytes) -> None:
    fake = FakeVllm(b"", special={"/metrics": lambda _: httpx.Response(status, content=body, headers={"content-type": kind})})
    probed = await probe(fake)
    assert probed.scrape_path is None
    assert not probed.facts.log_stats
    (warning,) = probed.facts.warnings
    assert f"answered {status} {kind}" in warning
    assert "own accounting" in warning


async def test_renamed_usage_metric() -> None:
    facts = (await probe(FakeVllm(recorded("0.32.0").replace(b"kv_cache_usage_perc", b"kv_cache_usage_fraction")))).facts
    assert facts.usage_metric is None
    (warning,) = facts.warnings
    assert "no usage metric found among vllm:kv_cache_usage_perc, vllm:gpu_cache_usage_perc" in warning
    assert "vllm:kv_cache_usage_fraction" in warning
    assert "runs on its own accounting" in warning
    assert "KV usage is not" in "\n".join(describe(facts, None))


async def test_missing_cache_config() -> None:
    facts = (await probe(FakeVllm(recorded("0.32.0").replace(b"vllm:cache_config_info{", b"vllm:other{")))).facts
    assert facts.block_size is None
    assert any("vllm:cache_config_info is missing" in warning for warning in facts.warnings)


async def test_unreadable_lines_are_told() -> None:
    text = recorded("0.32.0") + b'vllm:num_requests_running{engine="1"} many\n'
    facts = (await probe(FakeVllm(text))).facts
    assert any("1 lines of /metrics could not be read" in warning for warning in facts.warnings)


@pytest.mark.parametrize(("tokens", "odd"), [(8192, False), (8160, False), (5000, True), (40_000, True)])
async def test_capacity_cross_check(tokens: int, odd: bool) -> None:
    text = recorded("0.32.0").replace(b'kv_cache_size_tokens="8192"', b'kv_cache_size_tokens="%d"' % tokens)
    facts = (await probe(FakeVllm(text))).facts
    assert any("several KV groups" in warning for warning in facts.warnings) is odd


async def test_capacity_of_a_context_that_ends_inside_a_block_is_not_odd() -> None:
    # 256 blocks hold 256 requests of 17 tokens at 1 block of 32: int(256 × 17) tokens.
    models = {"data": [{"id": "m", "parent": None, "max_model_len": 17}]}
    text = recorded("0.32.0").replace(b'kv_cache_size_tokens="8192"', b'kv_cache_size_tokens="4352"')
    facts = (await probe(FakeVllm(text, special={"/v1/models": lambda _: httpx.Response(200, json=models)}))).facts
    assert facts.warnings == ()


async def test_server_info_fills_in_what_metrics_lack() -> None:
    config = {
        "vllm_config": {
            "scheduler_config": {"max_num_seqs": 64},
            "parallel_config": {"data_parallel_size": 2},
            "cache_config": {
                "block_size": 32,
                "num_gpu_blocks": 512,
                "kv_cache_size_tokens": 8192,
                "enable_prefix_caching": False,
            },
        }
    }
    fake = FakeVllm(recorded("0.32.0-disable-log-stats"), special={"/server_info": lambda _: httpx.Response(200, json=config)})
    facts = (await probe(fake)).facts
    assert (facts.sequences_max, facts.engines, facts.block_size, facts.kv_blocks_total) == (64, 2, 32, 512)
    assert not facts.prefix_caching
    assert fake.requests[-1].url.params["config_format"] == "json"


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


async def test_a_connection_closed_while_idle_is_replaced() -> None:
    def closed(request: httpx.Request) -> httpx.Response:
        if request.headers.get("connection") != "close":
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        return httpx.Response(200, json=MODELS)

    assert (await probe(FakeVllm(recorded("0.32.0"), special={"/v1/models": closed}))).facts.models == ("tiny", "my-lora")


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
