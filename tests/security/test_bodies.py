"""Bodies made to break a reader, a counter, a decision or what is told of them: the engine gets them as they came, and kvgate stands."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.security.attacked import Attacked, attacked, by_kvgate

pytestmark = pytest.mark.asyncio(loop_scope="module")

HALF = "\ud800"  # half of a surrogate pair: JSON can escape it, UTF-8 cannot write it
CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
TALK = [{"role": "user", "content": "hi"}]
DEEP = 30_000
BOMB = "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "mock", "messages": TALK, "max_tokens": 2} | fields


def nested(opening: bytes, closing: bytes, depth: int = DEEP, inner: bytes = b"1") -> bytes:
    return opening * depth + inner + closing * depth


def with_raw(name: bytes, value: bytes) -> bytes:
    """A chat with a member written by hand."""
    return b'{"model":"mock","messages":[{"role":"user","content":"hi"}],"%b":%b}' % (name, value)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kvgate() -> AsyncIterator[Attacked]:
    async with attacked() as server:
        yield server


# What is sent, and the outcome: FORWARDED, or the status of kvgate's own refusal.
FORWARDED = 200  # by the replica of these tests, which answers everything so
ATTACKS: dict[str, tuple[str, bytes | dict[str, Any], int]] = {
    # names that nothing can write
    "half a pair as user": (CHAT, chat(user=HALF), FORWARDED),
    "half a pair as model": (CHAT, chat(model=HALF), 404),
    "half a pair as session": (CHAT, chat(prompt_cache_key=HALF), FORWARDED),
    "half a pair as salt": (CHAT, chat(cache_salt=HALF), FORWARDED),
    "half a pair as request id": (CHAT, chat(request_id=HALF), FORWARDED),
    "half a pair as prompt": (COMPLETIONS, {"model": "mock", "prompt": HALF, "max_tokens": 2}, FORWARDED),
    "half a pair as the response before": (
        RESPONSES, {"model": "mock", "input": "x", "previous_response_id": HALF}, FORWARDED),
    "a line end and escapes as user": (CHAT, chat(user='a"\n\r\t\x00\x1b[31m{}\\\u2028\u202e'), FORWARDED),
    "a path as the response before": (
        RESPONSES, {"model": "mock", "input": "x", "previous_response_id": "../../sleep?level=1"}, FORWARDED),
    # deep
    "deep lists": (CHAT, with_raw(b"x", nested(b"[", b"]")), FORWARDED),
    "deep objects": (CHAT, with_raw(b"x", nested(b'{"a":', b"}")), FORWARDED),
    "deep beside a request id": (CHAT, b'{"request_id":"x","x":%b}' % nested(b"[", b"]"), FORWARDED),
    "just not too deep": (CHAT, with_raw(b"x", nested(b"[", b"]", 900)), FORWARDED),
    "deep content": (CHAT, b'{"model":"mock","messages":[{"role":"user","content":%b}]}' % nested(b"[", b"]", 900), FORWARDED),
    "deep tool": (CHAT, with_raw(b"tools", b'[{"type":"function","function":%b}]' % nested(b'{"a":', b"}", 800)), FORWARDED),
    "deep template arguments": (CHAT, with_raw(b"chat_template_kwargs", nested(b'{"a":', b"}", 900)), FORWARDED),
    "deep in a route that is passed": ("/tokenize", b'{"model":"mock","prompt":%b}' % nested(b"[", b"]"), FORWARDED),
    # numbers
    "n of 4000 digits": (CHAT, with_raw(b"n", b"9" * 4000), FORWARDED),
    "n of 5000 digits": (CHAT, with_raw(b"n", b"9" * 5000), FORWARDED),
    "a limit of 5000 digits": (CHAT, with_raw(b"max_tokens", b"9" * 5000), FORWARDED),
    "a limit of 4000 digits as text": (CHAT, with_raw(b"max_tokens", b'"%b"' % (b"9" * 4000)), FORWARDED),
    "a priority of 4000 digits": (CHAT, with_raw(b"priority", b"-" + b"9" * 4000), FORWARDED),
    "a truncation of 4000 digits": (CHAT, with_raw(b"truncate_prompt_tokens", b"9" * 4000), FORWARDED),
    "an exponent without end": (CHAT, with_raw(b"max_tokens", b"1e999999999"), FORWARDED),
    "NaN": (CHAT, with_raw(b"n", b"NaN"), FORWARDED),
    "Infinity": (CHAT, with_raw(b"max_tokens", b"Infinity"), FORWARDED),
    "a NaN that is not read": (CHAT, with_raw(b"temperature", b"-NaN"), FORWARDED),
    "a token id of 4000 digits": (COMPLETIONS, b'{"model":"mock","prompt":[%b]}' % (b"9" * 4000), FORWARDED),
    "token ids below 0": (COMPLETIONS, {"model": "mock", "prompt": [-1, -(2**70)]}, FORWARDED),
    "beams without end": (CHAT, chat(use_beam_search=True, n=2**40, max_tokens=2**40), FORWARDED),
    # keys
    "twice the same key": (CHAT, with_raw(b"model", b'"nobody"'), 404),  # the last counts, as in the engine
    "twenty thousand keys": (CHAT, chat(**{f"k{n}": n for n in range(20_000)}), FORWARDED),
    # templates: only the engine may trust them
    "a template that never ends": (CHAT, chat(chat_template=BOMB), FORWARDED),
    "a template among the arguments": (CHAT, chat(chat_template_kwargs={"chat_template": BOMB}), FORWARDED),
    "a template out of its box": (CHAT, chat(chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}"), FORWARDED),
    "arguments named like functions": (
        CHAT, chat(chat_template_kwargs={"raise_exception": 1, "range": 2, "namespace": 3, "loop": 4, "self": 1, "messages": []}),
        FORWARDED),
    "arguments of any kind": (CHAT, chat(chat_template_kwargs=[1], reasoning_effort={"a": [1]}), FORWARDED),
    # words where the engine has a closed list
    "odd kinds in Responses": (
        RESPONSES, {"model": "mock", "input": [{"type": ["a"], "role": 5}, {"type": {}, "status": ["x"]}], "tools": [5, {"type": [1]}]},
        FORWARDED),
    "calls that are no list": (
        RESPONSES,
        {"model": "mock", "input": [{"role": "assistant", "content": {}, "tool_calls": 5}, {"type": "function_call", "arguments": 1}]},
        FORWARDED),
    "odd kinds in Messages": (
        MESSAGES,
        {"model": "mock", "max_tokens": 3, "system": [{"type": [1]}],
         "messages": [{"role": "user", "content": [{"type": {"a": 1}}, {"type": ["tool_removal"]}, 7]}], "tools": [{"name": [1]}],
         "thinking": {"type": ["x"]}, "output_config": {"effort": [1]}},
        FORWARDED),
    "odd kinds in a chat": (
        CHAT,
        chat(messages=[{"role": ["x"], "content": {"a": 1}}, {"role": "user", "content": [1, None, {"type": ["x"]}, {"text": 7}]},
                       {"role": "assistant", "tool_calls": [1, {"function": 3}, {"function": {"arguments": "[" * 3000}}]}]),
        FORWARDED),
    "odd kinds in a ranking": ("/rerank", {"model": "mock", "query": {"content": [1]}, "documents": [{"a": 1}, [], None]}, FORWARDED),
    "options that are no object": (CHAT, chat(stream=True, stream_options=[1]), FORWARDED),
    # other writings
    "UTF-16": (CHAT, '{"model":"mock","messages":[]}'.encode("utf-16"), FORWARDED),
    "bytes that are no text": (CHAT, b'{"model":"mock","messages":[{"role":"user","content":"\xff\xfe"}]}', FORWARDED),
    "a form with odd names": (
        "/v1/audio/transcriptions",
        (b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nmo\xffck\r\n--x\r\nContent-Disposition: form-data; name="file";'
        b' filename="\n"\r\n\r\nRIFF\0\0\0\0WAVEfmt \xff\xff\xff\xff\r\n--x--\r\n'), 404),
}  # fmt: skip


@pytest.mark.parametrize("what", ATTACKS)
async def test_kvgate_stands(kvgate: Attacked, what: str) -> None:
    path, body, status = ATTACKS[what]
    kvgate.replica.requests.clear()
    reply = await kvgate.post(path, body)
    assert by_kvgate(reply), reply
    assert reply.status == status, reply.body
    forwarded = [head for head, _ in kvgate.replica.requests if head.startswith(b"POST ")]
    assert len(forwarded) == (status == FORWARDED)
    await kvgate.unharmed()


HEADERS: dict[str, dict[str, str]] = {
    "a deadline that is no number": {"x-kvgate-deadline-ms": "nan"},
    "a deadline below nothing": {"x-kvgate-deadline-ms": "-1e999"},
    "a rank of 5000 digits": {"x-data-parallel-rank": "9" * 5000},
    "a priority of 5000 digits": {"x-vllm-priority": "9" * 5000},
    "a priority in superscript": {"x-vllm-priority": "\xb2"},
    "a tenant in Latin-1": {"x-kvgate-tenant": '\xff\xfe"{},\\'},
    "a token that is no JSON": {"authorization": "Bearer a." + "W" * 2000 + ".c"},
    "a session without end": {"x-kvgate-session": "\xe9" * 5000},
    "a trace that is none": {"traceparent": "00-\xff", "tracestate": "x" * 5000, "baggage": "%zz"},
    "a retry count of 4500 digits": {"x-stainless-retry-count": "9" * 4500},
    "an origin without end": {"origin": "http://" + "a" * 5000},
    "a request id in Latin-1": {"x-request-id": "\xff"},
}


@pytest.mark.parametrize("what", HEADERS)
async def test_no_field_breaks_it(kvgate: Attacked, what: str) -> None:
    reply = await kvgate.post(CHAT, chat(), HEADERS[what])
    assert by_kvgate(reply)
    assert reply.status == FORWARDED
    await kvgate.unharmed()


async def test_a_name_in_a_token_that_nothing_can_write_is_a_name_all_the_same() -> None:
    """The claim of a web token, which a gateway verified, may escape halves of pairs as well."""
    claims = "eyJzdWIiOiJcdWQ4MDAifQ"  # {"sub":"\ud800"}
    async with attacked(tenants={"from": ["jwt"]}, trusted_callers=["127.0.0.1"]) as kvgate:
        reply = await kvgate.post(CHAT, chat(), {"authorization": f"Bearer a.{claims}.c"})
        assert reply.status == FORWARDED
        await kvgate.unharmed()
        assert 'kvgate_tenant_requests_total{outcome="completed",tenant="?"} 1.0' in kvgate.proxy.metrics
