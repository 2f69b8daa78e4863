"""Where a request goes that finds no room: to another model, or to an API outside; and who does not go there."""

import json
from typing import Any

import pytest

from proxy.sim.step_time import StepTimeModel
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import MESSAGES, proxying, until, url_of
from tests.support.upstream_servers import Peer, ScriptedUpstream

BODY = json.dumps({"messages": MESSAGES, "max_tokens": 4, "model": "gone", "odd": 1.50}).encode()
ANSWER = b'{"id":"x","choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}'


def outside(heads: list[bytes], bodies: list[bytes], status: bytes = b"200 OK") -> Any:
    """An API that notes what it is asked."""

    async def script(peer: Peer) -> None:
        head, body = await peer.request()
        heads.append(head)
        bodies.append(body)
        await peer.send(b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
                        % (status, len(ANSWER), ANSWER))  # fmt: skip

    return script


async def test_another_model_answers_for_one_that_nobody_serves() -> None:
    policy = {"classes": [{"name": "all", "fallbacks": ["nowhere", "mock"]}]}
    async with running(settings()) as mock, proxying(url_of(mock), policy=policy) as proxy:
        reply = await proxy.wire.request("POST", "/v1/chat/completions", BODY)
        assert (reply.status, reply.headers["x-kvgate-fallback"], reply.json()["model"]) == (200, "mock", "mock")
        reply = await proxy.wire.chat(max_tokens=2)
        assert (reply.status, "x-kvgate-fallback" in reply.headers) == (200, False)
        assert [record.model for record in proxy.records] == ["mock", "mock"]
        await proxy.until_idle(mock)


async def test_an_api_outside_gets_its_own_key_and_its_own_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGATE_TEST_KEY", "sk-outside")
    heads: list[bytes] = []
    bodies: list[bytes] = []
    async with running(settings()) as mock, ScriptedUpstream.running(outside(heads, bodies)) as api:
        fallback = {"url": api.url, "model": "gpt", "api_key_env": "KVGATE_TEST_KEY"}
        async with proxying(url_of(mock), policy={"classes": [{"name": "all", "fallbacks": [fallback]}]}) as proxy:
            reply = await proxy.wire.request("POST", "/v1/chat/completions", BODY, {"authorization": "Bearer sk-client"})
            assert (reply.status, reply.body) == (200, ANSWER)
            assert reply.headers["x-kvgate-fallback"] == f"{api.url} gpt"
            await proxy.until_idle(mock)
    assert bodies == [BODY.replace(b'"gone"', b'"gpt"')], "all other bytes as they came"
    assert b"authorization: Bearer sk-outside\r\n" in heads[0]
    assert b"sk-client" not in heads[0]


@pytest.mark.parametrize("status", [b"429 Too Many", b"503 Busy"])
async def test_the_first_refusal_stands_where_nobody_else_takes_it(status: bytes) -> None:
    heads: list[bytes] = []
    async with running(settings()) as mock, ScriptedUpstream.running(outside(heads, [], status)) as api:
        policy = {"classes": [{"name": "all", "fallbacks": [{"url": api.url}, {"url": "http://127.0.0.1:9"}, "nowhere"]}]}
        async with proxying(url_of(mock), policy=policy) as proxy:
            reply = await proxy.wire.request("POST", "/v1/chat/completions", BODY)
            assert (reply.status, reply.json()["error"]["code"]) == (404, "model_not_found")
            assert "gone" in reply.json()["error"]["message"]
            assert "x-kvgate-fallback" not in reply.headers
            await proxy.until_idle(mock)
    assert len(heads) == 1


LONG: dict[str, Any] = {"max_tokens": 1800, "ignore_eos": True, "stream": True}


@pytest.mark.parametrize(
    ("actions", "waits"), [(["queue", "reroute"], True), (["reroute", "queue"], False), (["reroute"], False)]
)
async def test_a_full_pool_sends_elsewhere_before_or_after_waiting(actions: list[str], *, waits: bool) -> None:
    heads: list[bytes] = []
    small: dict[str, Any] = {"name": "small", "match": {"headers": {"x-class": "small"}}, "when_saturated": actions}
    if waits:
        small["queue"] = {"wait_max": "200ms"}
    engine = {"num_gpu_blocks": 129, "max_model_len": 2048}
    async with (
        running(settings(engine=engine, step_time=StepTimeModel())) as mock,
        ScriptedUpstream.running(outside(heads, [])) as api,
    ):
        policy = {"classes": [small | {"fallbacks": [{"url": api.url}]}]}
        async with proxying(url_of(mock), policy=policy) as proxy:
            gate = proxy.services.dispatcher.gate
            exchanges = []
            while not len(gate.queue):
                exchanges.append(await proxy.wire.start_chat(**LONG))
                assert len(exchanges) < 60
                await until(lambda: gate.open_requests + len(gate.queue) == len(exchanges), "its arrival")
            held = gate.counters.held
            reply = await proxy.wire.chat({"x-class": "small"}, **LONG)
            assert (reply.status, reply.body) == (200, ANSWER)
            assert (gate.counters.held > held) is waits
            for exchange in exchanges:
                await exchange.leave()
            await proxy.until_idle(mock)


async def test_who_has_used_up_his_rate_is_not_sent_elsewhere() -> None:
    policy = {
        "classes": [{"name": "all", "fallbacks": ["mock"]}],
        "tenants": {"others": {"requests_per_s": 0.01, "burst": "1s"}},
    }
    async with running(settings()) as mock, proxying(url_of(mock), policy=policy) as proxy:
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        assert (await proxy.wire.chat(max_tokens=2)).headers["x-kvgate-outcome"] == "tenant_rate"
        await proxy.until_idle(mock)
