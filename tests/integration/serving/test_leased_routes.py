"""Routes whose bodies are of other kinds than a chat's hold a place as well, and go out as they came."""

import asyncio
import json
from typing import Any

import pytest

from proxy.core.outcome import Outcome
from tests.integration.serving.harness import RunningProxy, answer_like_vllm, proxying, until
from tests.support.upstream_servers import Peer, ScriptedUpstream
from tests.unit.wire.test_speech import form, wav

FORM = {"content-type": "multipart/form-data; boundary=b0undary"}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 32}
QUESTIONS = {"state": "a door", "questions": {name: {"type": "yes_no", "instructions": "open?"} for name in "abc"}}


class Replica:
    """Takes whatever is posted, and answers when it is let."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.free = asyncio.Event()

    async def __call__(self, peer: Peer) -> None:
        head, body = await peer.request()
        if b"POST" not in head or b"/tokenize" in head:
            await answer_like_vllm(peer, head)
            return
        self.bodies.append(body)
        await self.free.wait()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")


def json_body(**fields: Any) -> bytes:
    return json.dumps({"model": "mock"} | fields).encode()


CASES: dict[str, tuple[str, bytes, dict[str, str], int]] = {  # path, body, headers, prompts of it that the replica holds at once
    "a transcription": ("/v1/audio/transcriptions", form(wav(10), model="mock"), FORM, 1),
    "a translation of three pieces": ("/v1/audio/translations", form(wav(70), model="mock", max_completion_tokens="9"), FORM, 3),
    "an hour of it": ("/v1/audio/transcriptions", form(b"\0" * 11_000_000, model="mock"), FORM, 4),
    "an invocation that is a chat": ("/invocations", json_body(**CHAT), {}, 1),
    "an invocation that is an embedding": ("/invocations", json_body(input=["a", "b"]), {}, 2),
    "decisions": ("/v1/systemone", json_body(**QUESTIONS), {}, 3),
    "a chat in Cohere's form": ("/cohere/v2/chat", json_body(**CHAT, stream=True), {}, 1),
}


async def held(proxy: RunningProxy, replica: Replica, what: str) -> int:
    """Send it; how many prompts are booked while the replica works on it."""
    path, body, headers, _ = CASES[what]
    asked = asyncio.create_task(proxy.wire.request("POST", path, body, headers))
    await until(lambda: bool(replica.bodies) or asked.done(), "the replica to be asked")
    leases = [lease for book in proxy.services.dispatcher.gate.fleet for lease in book.ledger.leases.values()]
    replica.free.set()
    reply = await asked
    assert (reply.status, reply.body, reply.headers["x-kvgate-outcome"]) == (200, b"{}", "completed")
    assert replica.bodies == [body]
    await proxy.until_idle()
    return sum(len(lease.demand.parts) for lease in leases)


@pytest.mark.parametrize("what", CASES)
async def test_it_holds_a_place_until_it_ends(what: str) -> None:
    replica = Replica()
    async with ScriptedUpstream.running(replica) as upstream, proxying(upstream.url, kv_blocks=1000) as proxy:
        assert await held(proxy, replica, what) == CASES[what][3]
        (record,) = proxy.records
        assert (record.route, record.outcome) == (CASES[what][0], Outcome.COMPLETED)


async def test_a_body_that_only_the_engine_can_judge_passes_without_one() -> None:
    replica = Replica()
    replica.free.set()
    async with ScriptedUpstream.running(replica) as upstream, proxying(upstream.url, kv_blocks=300) as proxy:
        for path, body in (("/invocations", b'{"tokens":3}'), ("/v1/systemone", b"[]"), ("/v1/audio/transcriptions", b"{}")):
            assert (await proxy.wire.request("POST", path, body)).status == 200
        assert proxy.records == []
