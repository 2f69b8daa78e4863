"""kvgate answers for the fleet (models, versions, load), keeps engine control from clients, and names every request."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from proxy import __version__
from proxy.serving.access import AdminAccess
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import Reply, RunningProxy, proxying, until, url_of
from tests.support.upstream_servers import Peer, ScriptedUpstream

TOKEN = "a token for these tests"
ALLOW = {"passthrough": {"allow": ["/sleep", "/v1/*_lora_adapter"]}}


def card(name: str, context_tokens_max: int | None, **fields: Any) -> dict[str, Any]:
    return {"id": name, "object": "model", "owned_by": "vllm", "parent": None, "max_model_len": context_tokens_max} | fields


@asynccontextmanager
async def engine(*cards: dict[str, Any], version: str = "0.32.0", status: int = 200) -> AsyncIterator[ScriptedUpstream]:
    """A server that tells these models and answers everything else with what it was asked."""

    async def serve(peer: Peer) -> None:
        head, sent = await peer.request()
        method, target, _ = head.decode("latin-1").split(" ", 2)
        content: dict[str, Any] = {"asked": f"{method} {target}", "head": head.decode("latin-1"), "body": sent.decode("latin-1")}
        if target == "/v1/models":
            content = {"object": "list", "data": cards}
        elif target == "/version":
            content = {"version": version}
        text = json.dumps(content).encode()
        fields = b"content-type: application/json\r\nconnection: close\r\nx-request-id: the-engines-own"
        code = status if method == "POST" else 200
        await peer.send(b"HTTP/1.1 %d OK\r\n%b\r\ncontent-length: %d\r\n\r\n%b" % (code, fields, len(text), text))

    async with ScriptedUpstream.running(serve) as upstream:
        yield upstream


def named(url: str, name: str) -> dict[str, Any]:
    return {"url": url, "name": name}


async def models(proxy: RunningProxy) -> dict[str, Any]:
    reply = await proxy.wire.request("GET", "/v1/models")
    assert reply.status == 200
    return {one["id"]: one for one in reply.json()["data"]}


async def test_models_are_the_union_with_the_least_length_of_those_that_serve_one() -> None:
    async with AsyncExitStack() as stack, AsyncExitStack() as gone_later:
        long = await stack.enter_async_context(engine(card("chat", 8192), card("tuned", None, parent="chat"), version="0.32.1"))
        short = await gone_later.enter_async_context(engine(card("chat", 4096, extra={"kept": [1]}), version="0.10.2"))
        other = await stack.enter_async_context(engine(card("embedding", 512), version="0.9.1rc1"))
        policy = {"replicas": [named(long.url, "long"), named(short.url, "short"), named(other.url, "other")]}
        proxy = await stack.enter_async_context(proxying(policy=policy, tokenizer=False))
        found = await models(proxy)
        assert list(found) == ["chat", "tuned", "embedding"]
        assert found["chat"] == card("chat", 4096, extra={"kept": [1]})
        assert found["tuned"] == card("tuned", None, parent="chat")
        version = (await proxy.wire.request("GET", "/version")).json()
        replicas = {"long": "0.32.1", "short": "0.10.2", "other": "0.9.1rc1"}
        assert version == {"version": "0.9.1rc1", "kvgate": __version__, "replicas": replicas}
        await gone_later.aclose()
        await proxy.until_serving(2)
        assert (await models(proxy))["chat"] == card("chat", 8192)


async def test_during_an_outage_what_was_last_known_stays() -> None:
    async with AsyncExitStack() as replica:
        upstream = await replica.enter_async_context(engine(card("chat", 4096)))
        async with proxying(upstream.url, tokenizer=False) as proxy:
            await replica.aclose()
            await proxy.until_serving(0)
            assert await models(proxy) == {"chat": card("chat", 4096)}


async def test_before_any_probe_there_is_no_list_of_models() -> None:
    async with proxying("http://127.0.0.1:9", probed=False, tokenizer=False) as proxy:
        reply = await proxy.wire.request("GET", "/v1/models")
        assert (reply.status, reply.headers["x-kvgate-outcome"]) == (503, "no_replica")
        assert (await proxy.wire.request("GET", "/version")).json()["version"] is None


async def test_a_known_model_without_a_replica_is_503_and_an_unknown_one_404() -> None:
    async with AsyncExitStack() as replica:
        mock = await replica.enter_async_context(running(settings()))
        async with proxying(url_of(mock)) as proxy:
            await replica.aclose()
            await proxy.until_serving(0)
            known = await proxy.wire.chat(model="mock")
            assert (known.status, known.headers["x-kvgate-outcome"]) == (503, "no_replica")
            assert (await proxy.wire.chat(model="nobody's")).status == 404


async def test_load_counts_what_replicas_work_on() -> None:
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy:
        name = next(iter(proxy.services.watchers))
        stream = await proxy.wire.start_chat(stream=True, max_tokens=3000, ignore_eos=True)
        await until(lambda: proxy.services.dispatcher.gate.open_requests == 1, "the request")
        assert (await proxy.wire.request("GET", "/load")).json() == {"server_load": 1, "queued": 0, "replicas": {name: 1}}
        await stream.leave()
        await proxy.until_idle(mock)
        assert (await proxy.wire.request("GET", "/load")).json() == {"server_load": 0, "queued": 0, "replicas": {name: 0}}


@asynccontextmanager
async def two(policy: dict[str, Any], *, token: str | None = TOKEN, status: int = 200) -> AsyncIterator[RunningProxy]:
    async with engine(card("m", 4096)) as left, engine(card("m", 4096), status=status) as right:
        replicas = {"replicas": [named(left.url, "left"), named(right.url, "right")]}
        async with proxying(policy=policy | replicas, tokenizer=False) as proxy:
            proxy.services.access = AdminAccess(token)
            yield proxy
            await proxy.until_idle()


def code(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.json()["error"]["code"]


@pytest.mark.parametrize(
    "path", ["/sleep?level=1", "/%73leep", "//sleep", "/v1/../sleep", "/SLEEP", "/sleep/", "/api/sleep", "/%2573leep"]
)
async def test_engine_control_is_closed_however_it_is_spelled(path: str) -> None:
    allowing_others = {"passthrough": {"allow": ["/pause", "/v1/*"]}}
    async with two(allowing_others) as proxy:
        headers = {"x-kvgate-admin-token": TOKEN, "x-kvgate-replica": "left"}
        assert code(await proxy.wire.request("POST", path, headers=headers)) == (403, "route_closed")


@pytest.mark.parametrize("path", ["/%2573leep", "//sleep", "/SLEEP", "/sleep/", "/api/sleep"])
async def test_what_is_open_is_open_under_the_engines_own_name_only(path: str) -> None:
    async with two({"passthrough": {"allow": "*"}}) as proxy:
        headers = {"x-kvgate-admin-token": TOKEN, "x-kvgate-replica": "left"}
        assert code(await proxy.wire.request("POST", path, headers=headers)) == (403, "route_closed")


async def test_what_is_open_takes_the_token_and_a_named_replica() -> None:
    async with two(ALLOW) as proxy:
        left = {"x-kvgate-replica": "left"}
        assert code(await proxy.wire.request("POST", "/sleep", headers=left)) == (401, "admin_token_wrong")
        wrong = left | {"x-kvgate-admin-token": TOKEN + "x"}
        assert code(await proxy.wire.request("POST", "/sleep", headers=wrong)) == (401, "admin_token_wrong")
        right_token = {"x-kvgate-admin-token": TOKEN}
        for target in ({}, {"x-kvgate-replica": "nobody"}, {"x-kvgate-replica": ""}):
            assert code(await proxy.wire.request("POST", "/sleep", headers=right_token | target)) == (400, "replica_not_named")
        assert code(await proxy.wire.request("POST", "/pause", headers=right_token | left)) == (403, "route_closed")
        proxy.services.access = AdminAccess(None)
        assert code(await proxy.wire.request("POST", "/sleep", headers=right_token | left)) == (403, "admin_token_not_set")


@pytest.mark.parametrize(
    "given", [{"x-kvgate-admin-token": TOKEN, "authorization": "Bearer theirs"}, {"authorization": f"Bearer {TOKEN}"}]
)
async def test_one_replica_answers_itself_and_never_sees_the_token(given: dict[str, str]) -> None:
    async with two(ALLOW) as proxy:
        headers = given | {"x-kvgate-replica": "right", "x-other": "kept"}
        reply = await proxy.wire.request("POST", "/sleep?level=2", b'{"a": 1}', headers)
        assert reply.status == 200
        seen = reply.json()
        assert (seen["asked"], seen["body"]) == ("POST /sleep?level=2", '{"a": 1}')
        assert TOKEN not in seen["head"]
        assert "x-kvgate-replica" not in seen["head"]
        assert "x-other: kept" in seen["head"]
        assert ("authorization: Bearer theirs" in seen["head"]) is ("x-kvgate-admin-token" in given)


@pytest.mark.parametrize(("status", "whole"), [(200, 200), (500, 502)])
async def test_all_replicas_are_answered_for_by_name(status: int, whole: int) -> None:
    async with two(ALLOW, status=status) as proxy:
        headers = {"x-kvgate-admin-token": TOKEN, "x-kvgate-replica": "all"}
        reply = await proxy.wire.request("POST", "/v1/load_lora_adapter", b"{}", headers)
        assert reply.status == whole
        assert {name: (one["status"], one["body"]["asked"]) for name, one in reply.json().items()} == {
            "left": (200, "POST /v1/load_lora_adapter"),
            "right": (status, "POST /v1/load_lora_adapter"),
        }


async def test_a_replica_that_is_not_there_is_told_of() -> None:
    async with two(ALLOW) as proxy, ScriptedUpstream.running(lambda _: _hang_up()) as gone:
        object.__setattr__(proxy.services.watchers["right"].policy, "url", gone.url)
        headers = {"x-kvgate-admin-token": TOKEN, "x-kvgate-replica": "all"}
        reply = await proxy.wire.request("POST", "/sleep", headers=headers)
        assert (reply.status, reply.json()["right"]["status"]) == (502, None)
        assert "reset" in reply.json()["right"]["error"]
        one = await proxy.wire.request("POST", "/sleep", headers=headers | {"x-kvgate-replica": "right"})
        assert code(one) == (502, "upstream_failed")
        assert one.headers["x-should-retry"] == "false"


async def _hang_up() -> None:
    return


async def test_a_request_keeps_its_name_on_the_whole_way() -> None:
    async with engine(card("m", 4096)) as upstream, proxying(upstream.url, tokenizer=False) as proxy:
        tracing = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=value"}
        reply = await proxy.wire.request("POST", "/tokenize", b"{}", tracing | {"x-request-id": "theirs"})
        assert reply.headers["x-request-id"] == "theirs"
        sent = reply.json()["head"].split("\r\n")
        assert {"x-request-id: theirs", *(f"{name}: {value}" for name, value in tracing.items())} <= set(sent)
        made = await proxy.wire.request("POST", "/tokenize", b"{}")
        assert made.headers["x-request-id"].startswith("kvgate-")
        assert f"x-request-id: {made.headers['x-request-id']}" in made.json()["head"]
        in_body = await proxy.wire.request("POST", "/tokenize", b'{"request_id": "of the-body"}')
        assert in_body.headers["x-request-id"].startswith("kvgate-")
        in_body = await proxy.wire.request("POST", "/tokenize", b'{"request_id": "of-the-body"}')
        assert in_body.headers["x-request-id"] == "of-the-body"
        assert "x-request-id: of-the-body" in in_body.json()["head"]
        closed = await proxy.wire.request("POST", "/sleep", headers={"x-request-id": "theirs"})
        assert (closed.status, closed.headers["x-request-id"]) == (403, "theirs")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_is_named_in_answer_and_log_and_by_the_engine(stream: bool) -> None:
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy:
        for given in ("theirs", ""):
            reply = await proxy.wire.chat({"x-request-id": given}, max_tokens=2, stream=stream)
            name = reply.headers["x-request-id"]
            assert name == given or (not given and name.startswith("kvgate-"))
            assert proxy.records[-1].request_id == name
            assert f'"chatcmpl-{name}"'.encode() in reply.body
        refused = await proxy.wire.chat({"x-request-id": "theirs"}, model="nobody's")
        assert (refused.status, refused.headers["x-request-id"]) == (404, "theirs")


FORM = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n--x--\r\n'
FORM_TYPE = {"content-type": "multipart/form-data; boundary=x"}


async def test_where_models_differ_a_request_goes_where_its_model_is() -> None:
    async with engine(card("chat", 4096)) as chat, engine(card("speech", 4096)) as speech:
        replicas = [named(chat.url, "chat"), named(speech.url, "speech")]
        async with proxying(policy={"replicas": replicas}, tokenizer=False) as proxy:
            for model, upstream in (("chat", chat), ("speech", speech)) * 2:
                for body, headers in ((json.dumps({"model": model}).encode(), {}), (FORM % model.encode(), FORM_TYPE)):
                    reply = await proxy.wire.request("POST", "/v1/of_a_plugin", body, headers)
                    assert f"host: 127.0.0.1:{upstream.port}" in reply.json()["head"]
            for anything in (b"", b"{", b'{"model": 7}', b'{"model": "nobody\'s"}', b"\xff"):
                assert (await proxy.wire.request("POST", "/v1/of_a_plugin", anything)).status == 200


async def test_without_any_replica_that_takes_requests_it_is_503() -> None:
    async with engine(card("m", 4096)) as upstream, proxying(upstream.url, tokenizer=False) as proxy:
        for watcher in proxy.services.watchers.values():
            watcher.drain()
        reply = await proxy.wire.request("POST", "/v1/of_a_plugin", b"{}")
        assert (reply.status, reply.headers["x-kvgate-outcome"]) == (503, "no_replica")


async def test_pages_may_read_our_own_answers_as_the_engine_says() -> None:
    asked: list[bytes] = []

    async def serve(peer: Peer) -> None:
        head, _ = await peer.request()
        page = b"origin: https://page.example" in head
        if page:
            asked.append(head.split(b" ", 2)[1])
        body = b"" if b"GET /v1/models" not in head else json.dumps({"object": "list", "data": [card("m", 4096)]}).encode()
        cors = b"access-control-allow-origin: https://page.example\r\naccess-control-allow-credentials: true\r\n" if page else b""
        fields = b"content-type: application/json\r\nvary: Origin\r\nserver: uvicorn\r\n%bconnection: close\r\n" % cors
        await peer.send(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (fields, len(body), body))

    async with ScriptedUpstream.running(serve) as upstream, proxying(upstream.url, tokenizer=False) as proxy:
        for path, status in (("/v1/models", 200), ("/health", 200), ("/sleep", 403), ("/v1/models", 200)):
            reply = await proxy.wire.request("GET", path, headers={"origin": "https://page.example"})
            assert reply.status == status
            told = {name: reply.headers.get(name) for name in ("vary", "access-control-allow-origin", "server")}
            assert told == {"vary": "Origin", "access-control-allow-origin": "https://page.example", "server": None}
        assert asked == [b"/version"]
        other = await proxy.wire.request("GET", "/v1/models", headers={"origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers
        assert "vary" not in (await proxy.wire.request("GET", "/v1/models")).headers


async def test_a_page_is_answered_without_a_replica_too() -> None:
    async with proxying("http://127.0.0.1:9", probed=False, tokenizer=False) as proxy:
        reply = await proxy.wire.request("GET", "/health", headers={"origin": "https://page.example"})
        assert (reply.status, "vary" in reply.headers) == (200, False)
