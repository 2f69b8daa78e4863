"""What a client gets through kvgate is what it gets from the engine, byte for byte."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import MESSAGES, Reply, RunningProxy, Wire, proxying, url_of

# ids and creation times differ from one answer of the engine to the next
MASK = re.compile(rb'(chatcmpl-|cmpl-|modelperm-|chatcmpl-tool-)[\w.-]+|"created":\s*\d+')


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mock() -> AsyncIterator[RunningMock]:
    async with running(settings()) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxy(mock: RunningMock) -> AsyncIterator[RunningProxy]:
    async with proxying(url_of(mock)) as server:
        yield server


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def nothing_stays(mock: RunningMock, proxy: RunningProxy) -> AsyncIterator[None]:
    yield
    await proxy.until_idle(mock)


def shown(reply: Reply) -> tuple[int, dict[str, str], bytes]:
    """Return what must be equal: status, headers but those of one hop or one moment and kvgate's own, body with ids masked."""
    headers = {
        name: value
        for name, value in reply.headers.items()
        if name not in {"date", "server", "connection", "x-request-id"} and not name.startswith("x-kvgate-")
    }
    return reply.status, headers, MASK.sub(b"#", reply.body)


async def both(mock: RunningMock, proxy: RunningProxy, method: str, path: str, body: bytes = b"", **headers: str) -> None:
    """Ask the engine directly and through kvgate."""
    fields = {"x-request-id": "one"} | {name.replace("_", "-"): value for name, value in headers.items()}
    direct = await Wire(mock.port).request(method, path, body, fields)
    through = await proxy.wire.request(method, path, body, fields)
    assert shown(through) == shown(direct)


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
CHATS: list[dict[str, Any]] = [
    {},
    {"stream": True},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stream": True, "stream_options": {"include_usage": False}},
    {"stream": True, "stream_options": None},
    {"n": 3, "max_tokens": 9},
    {"n": 2, "stream": True, "max_completion_tokens": 7},
    {"tools": TOOLS, "tool_choice": "none"},
    {"model": "mock", "temperature": 0.3, "unknown_field": {"kept": [1, None]}},
    {"logprobs": True, "top_logprobs": 2, "max_tokens": 3},
]


@pytest.mark.parametrize("fields", CHATS, ids=json.dumps)
async def test_chats_are_equal(mock: RunningMock, proxy: RunningProxy, fields: dict[str, Any]) -> None:
    await both(
        mock, proxy, "POST", "/v1/chat/completions", json.dumps({"messages": MESSAGES, "max_tokens": 12} | fields).encode()
    )


COMPLETIONS: list[dict[str, Any]] = [
    {"prompt": "one two"},
    {"prompt": ["one", "two words"], "n": 2, "max_tokens": 4},
    {"prompt": [5, 6, 7, 8], "stream": True},
    {"prompt": [[5, 6], [7, 8, 9]], "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}},
    {"prompt": "echoed", "echo": True, "max_tokens": 2},
]


@pytest.mark.parametrize("fields", COMPLETIONS, ids=json.dumps)
async def test_completions_are_equal(mock: RunningMock, proxy: RunningProxy, fields: dict[str, Any]) -> None:
    await both(mock, proxy, "POST", "/v1/completions", json.dumps(fields).encode())


REST = [
    ("GET", "/v1/models/mock", b""),
    ("POST", "/version", b""),
    ("PUT", "/load?x=1", b""),
    ("POST", "/tokenize", b'{"prompt": "two words"}'),
    ("POST", "/detokenize", b'{"tokens": [5, 6]}'),
    ("GET", "/v1/nothing", b""),
    ("POST", "/v1/nothing", b"{}"),
    ("GET", "/v1/chat/completions", b""),
    ("PUT", "/v1/completions", b"{}"),
    ("DELETE", "/v1/models", b""),
    ("HEAD", "/v1/models", b""),
    ("OPTIONS", "/v1/chat/completions", b""),
    ("POST", "/v1/models", b"{}"),
    ("GET", "/a%20b/%C3%A9?q=%2F&q=2", b""),
    ("POST", "/metrics", b"{}"),
]


@pytest.mark.parametrize(("method", "path", "body"), REST)
async def test_every_other_path_is_passed_through(
    mock: RunningMock, proxy: RunningProxy, method: str, path: str, body: bytes
) -> None:
    await both(mock, proxy, method, path, body)


async def test_the_list_of_models_is_the_engines_own(mock: RunningMock, proxy: RunningProxy) -> None:
    """Status and body; the header ``vary`` is for browsers, which kvgate does not answer itself."""
    direct, through = [await Wire(port).request("GET", "/v1/models?x=1") for port in (mock.port, proxy.wire.port)]
    assert (through.status, MASK.sub(b"#", through.body)) == (200, MASK.sub(b"#", direct.body))


BAD = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b'{"messages": []}',
    b'{"messages": "text"}',
    b'{"messages": [3]}',
    b'{"messages": [{"role": "user"}]}',
    b'{"messages": [{"content": "no role"}]}',
    b'{"messages": null, "max_tokens": 3}',
    b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": "many"}',
    b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}',
    b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": -1}',
    b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 100000000000000000000}',
    b'{"messages": [{"role": "user", "content": "x"}], "n": 0}',
    b'{"messages": [{"role": "user", "content": "x"}], "n": 100000}',
    b'{"messages": [{"role": "user", "content": "x"}], "stream": "perhaps"}',
    b'{"messages": [{"role": "user", "content": "x"}], "stream_options": {"include_usage": true}}',
    b'{"messages": [{"role": "user", "content": "x"}], "stream": true, "stream_options": 7}',
    b'{"messages": [{"role": "user", "content": "x"}], "stream": true, "max_tokens": 0}',
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": -1}',
    b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "model": 7}',
    b'{"messages": [{"role": "user", "content": "x"}], "messages": []}',
    b"[" * 5000,
    b'{"messages": [{"role": "user", "content": "x"}]} trailing',
]


@pytest.mark.parametrize("body", BAD, ids=lambda body: body[:60].decode("latin-1"))
async def test_the_engine_judges_a_bad_body_itself(mock: RunningMock, proxy: RunningProxy, body: bytes) -> None:
    await both(mock, proxy, "POST", "/v1/chat/completions", body)
    assert (await proxy.wire.chat(max_tokens=2)).status == 200


BAD_COMPLETIONS = [
    b'{"prompt": ""}',
    b'{"prompt": []}',
    b'{"prompt": [[]]}',
    b'{"prompt": null}',
    b'{"prompt": {"a": 1}}',
    b'{"prompt": ["a", 1]}',
    b'{"prompt": [-1]}',
    b'{"prompt": [99999999]}',
    b'{"prompt": [1.5, 2]}',
    b'{"prompt": "x", "max_tokens": 0}',
    b'{"prompt": "x", "best_of": 0}',
    b"{}",
]


@pytest.mark.parametrize("body", BAD_COMPLETIONS, ids=lambda body: body[:60].decode("latin-1"))
async def test_the_engine_judges_a_bad_completion_itself(mock: RunningMock, proxy: RunningProxy, body: bytes) -> None:
    await both(mock, proxy, "POST", "/v1/completions", body)


async def test_a_wrong_content_type_is_the_engines_to_refuse(mock: RunningMock, proxy: RunningProxy) -> None:
    body = json.dumps({"messages": MESSAGES, "max_tokens": 2}).encode()
    await both(mock, proxy, "POST", "/v1/chat/completions", body, content_type="text/plain")
    await both(mock, proxy, "POST", "/v1/chat/completions", body, content_type="")
    await both(mock, proxy, "POST", "/v1/chat/completions", body, content_type="application/json; charset=utf-8")


async def test_a_key_that_only_clients_have_is_not_enough_to_probe() -> None:
    async with running(settings(api_key="secret")) as guarded, proxying(url_of(guarded), probed=False) as through:
        # without the key the probe sees no models: kvgate says so instead of guessing
        reply = await through.wire.chat({"authorization": "Bearer secret"}, max_tokens=2)
        assert (reply.status, reply.headers["x-kvgate-outcome"]) == (503, "no_replica")


async def test_a_redirect_does_not_lead_past_kvgate(mock: RunningMock, proxy: RunningProxy) -> None:
    direct = await Wire(mock.port).request("POST", "/v1/chat/completions/", b"{}", {"host": f"127.0.0.1:{mock.port}"})
    through = await proxy.wire.request("POST", "/v1/chat/completions/", b"{}")
    assert (direct.status, direct.headers["location"]) == (307, f"{url_of(mock)}/v1/chat/completions")
    assert (through.status, through.headers["location"]) == (307, "/v1/chat/completions")
