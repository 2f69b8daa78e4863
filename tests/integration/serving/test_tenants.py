"""Tenants at the wire: whose key opens the door, who may say who he is, and what a rate and a class make of a request."""

import hashlib
import json
from typing import Any

import pytest

from proxy.core.outcome import Outcome
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import MESSAGES, answer_like_vllm, proxying, url_of
from tests.support.upstream_servers import Peer, ScriptedUpstream

BODY = json.dumps({"messages": MESSAGES, "max_tokens": 4}).encode()
ACME = {"authorization": "Bearer sk-acme"}


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


CLOSED: dict[str, Any] = {"auth": "require", "tenants": {"from": "api_key", "list": {"acme": {"key_sha256": digest("sk-acme")}}}}


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer sk-other"}, {"authorization": "Bearer "}, {"x-api-key": "sk-acm"}]
)
async def test_a_key_that_is_nobodys_opens_nothing(headers: dict[str, str]) -> None:
    async with running(settings()) as mock, proxying(url_of(mock), policy=CLOSED) as proxy:
        for method, path in (("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("GET", "/v1/models"), ("POST", "/any")):
            reply = await proxy.wire.request(method, path, BODY if method == "POST" else b"", headers)
            assert (reply.status, reply.headers["x-kvgate-outcome"]) == (401, "unauthorized")
            assert reply.headers["x-should-retry"] == "false"
            error = reply.json()["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
        reply = await proxy.wire.request("POST", "/v1/messages", BODY, headers)
        assert (reply.status, reply.json()["type"], reply.json()["error"]["type"]) == (401, "error", "authentication_error")
        for path in ("/health", "/ready", "/metrics"):
            assert (await proxy.wire.request("GET", path, b"", headers)).status == 200
        preflight = await proxy.wire.request("OPTIONS", "/v1/chat/completions", b"", {"origin": "https://page"})
        assert preflight.status != 401, "browsers ask without a key what they may ask for"
        assert not proxy.records


async def test_a_tenants_key_opens_the_door_and_goes_no_further() -> None:
    heads: list[bytes] = []

    async def script(peer: Peer) -> None:
        head, _ = await peer.request()
        heads.append(head)
        await answer_like_vllm(peer, head)

    async with ScriptedUpstream.running(script) as replica, proxying(replica.url, policy=CLOSED) as proxy:
        for headers in (ACME, {"x-api-key": "sk-acme"}):
            await proxy.wire.request("POST", "/v1/completions", b'{"prompt": "a", "max_tokens": 1}', headers)
            await proxy.wire.request("POST", "/tokenize", BODY, headers)
        assert {record.tenant for record in proxy.records} == {"acme"}
    posted = [head for head in heads if head.startswith(b"POST")]
    assert len(posted) >= 4
    assert not [head for head in posted if b"sk-acme" in head]


async def test_the_replica_sees_its_own_key_in_the_place_of_a_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGATE_TEST_KEY", "sk-replica")
    async with running(settings(api_key="sk-replica")) as mock:
        policy = CLOSED | {"replicas": [{"url": url_of(mock), "api_key_env": "KVGATE_TEST_KEY"}]}
        async with proxying(policy=policy) as proxy:
            assert (await proxy.wire.chat(ACME, max_tokens=2)).status == 200
            assert (await proxy.wire.chat({"authorization": "Bearer sk-replica"}, max_tokens=2)).status == 401


@pytest.mark.parametrize(("callers", "tenant"), [(["127.0.0.0/8"], "boss"), (["10.0.0.0/8"], "acme"), (None, "boss")])
async def test_only_trusted_callers_say_who_a_request_is_from(callers: list[str] | None, tenant: str) -> None:
    policy: dict[str, Any] = {"tenants": {"from": ["header", "api_key"], "list": {"acme": {"key_sha256": digest("sk-acme")}}}}
    if callers is not None:
        policy["trusted_callers"] = callers
    async with running(settings()) as mock, proxying(url_of(mock), policy=policy) as proxy:
        assert (await proxy.wire.chat(ACME | {"x-kvgate-tenant": "boss"}, max_tokens=2)).status == 200
        assert [record.tenant for record in proxy.records] == [tenant]


async def test_a_rate_over_http() -> None:
    policy = {"tenants": {"list": {"acme": {"requests_per_s": 0.01, "burst": "1s"}}}}
    async with running(settings()) as mock, proxying(url_of(mock), policy=policy) as proxy:
        assert (await proxy.wire.chat({"x-kvgate-tenant": "acme"}, max_tokens=2)).status == 200
        reply = await proxy.wire.chat({"x-kvgate-tenant": "acme"}, max_tokens=2)
        assert (reply.status, reply.headers["x-kvgate-outcome"]) == (429, "tenant_rate")
        assert (reply.headers["retry-after"], reply.headers["x-should-retry"]) == ("59", "false")
        error = reply.json()["error"]
        assert error["policy_key"] == "tenants.list.acme.requests_per_s"
        assert 60.0 < error["retry_after_s"] <= 100.0
        assert (await proxy.wire.chat({"x-kvgate-tenant": "other"}, max_tokens=2)).status == 200
        assert [record.outcome for record in proxy.records] == [Outcome.COMPLETED, Outcome.TENANT_RATE, Outcome.COMPLETED]
        await proxy.until_idle(mock)


async def test_a_class_by_the_length_of_the_prompt() -> None:
    policy = {
        "classes": [
            {"name": "long", "match": {"prompt_tokens": {"min": 200}}},
            {"name": "short", "match": {"prompt_tokens": {"max": 199}}},
        ]
    }
    async with running(settings()) as mock, proxying(url_of(mock), policy=policy) as proxy:
        for length in (199, 200):
            assert (await proxy.wire.complete(prompt=[7] * length, max_tokens=1)).status == 200
        assert [record.traffic_class for record in proxy.records] == ["short", "long"]
