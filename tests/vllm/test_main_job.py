"""The main job on a real engine: a load that makes it preempt without kvgate does not with kvgate, and clients see no difference.

Preemptions are the engine's own counter. No time is asserted: ``tests/bench/pairs.py`` measures those on a quiet machine.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.bench.admin import why_not_deciding
from tests.bench.engine import CLOSING, SERVER_S_MAX, wait_idle
from tests.bench.kvgate_process import KvgateProcess, kvgate_process
from tests.bench.load import LoadRequest, new_upstream, run_load, send
from tests.bench.loads import as_request, chat, wave
from tests.bench.pairs import run_pair
from tests.vllm.conftest import VllmFactory, VllmServer

pytestmark = pytest.mark.vllm

KV_BLOCKS = 256
USABLE_BLOCKS = KV_BLOCKS - 1  # less the null block
MASKED = re.compile(rb'("id":"(?:chatcmpl|cmpl|modelperm)-)[^"]*|("created":)\d+')
FINISHED = re.compile(r"^vllm:request_success_total\{[^\n]*\} ([0-9.e+]+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def gate(replica: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvgateProcess]:
    with kvgate_process(replica.base_url, replica.model_dir, tmp_path_factory.mktemp("kvgate")) as running:
        yield running


@pytest.mark.parametrize(("load", "preemptions_max"), [("wave", 1), ("lognormal", 2)])
async def test_a_load_that_makes_the_engine_preempt_does_not_through_kvgate(
    load: str, preemptions_max: int, replica: VllmServer, gate: KvgateProcess
) -> None:
    arms = await run_pair(0, load, vllm=replica.base_url, kvgate=gate.base_url)
    for arm in arms.values():
        assert arm.summary.completed == arm.summary.requests, arm.line() + str(arm.summary.errors)
    assert arms["direct"].preemptions > 100, arms["direct"].line()
    assert arms["kvgate"].preemptions <= preemptions_max, arms["kvgate"].line()
    assert await why_not_deciding(gate.admin_url) == ""
    assert arms["kvgate"].summary.output_tokens == arms["direct"].summary.output_tokens


def masked(body: bytes) -> bytes:
    """Return an answer without what differs from one request to the next."""
    return MASKED.sub(rb"\1\2", body)


def test_the_list_of_models_is_the_engines(replica: VllmServer, gate: KvgateProcess) -> None:
    direct, through = (httpx.get(f"{url}/v1/models", timeout=SERVER_S_MAX) for url in (replica.base_url, gate.base_url))
    assert through.status_code == direct.status_code == 200
    assert masked(through.content) == masked(direct.content)


def rejoined(stream: bytes) -> tuple[str, list[str]]:
    """Return a stream's text, and its events without it, equal neighbours once: a busy engine puts several tokens into one event."""
    text = ""
    events: list[str] = []
    for event in masked(stream).decode().split("\n\n"):
        found = re.search(r'"(?:content|text)":("(?:[^"\\]|\\.)*")', event)
        text += json.loads(found[1]) if found else ""
        bare = event if found is None else event.replace(found[0], "…", 1)
        if not events or events[-1] != bare:
            events.append(bare)
    return text, events


CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "one two"}], "max_tokens": 40, "temperature": 0, "seed": 7}
COMPLETION = {"model": "tiny", "prompt": "one two three", "max_tokens": 40, "temperature": 0, "seed": 7}


@pytest.mark.parametrize("stream_fields", [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}])
@pytest.mark.parametrize(("target", "fields"), [("chat/completions", CHAT), ("completions", COMPLETION)])
def test_an_answer_is_the_engines_own(
    target: str, fields: dict[str, Any], stream_fields: dict[str, Any], replica: VllmServer, gate: KvgateProcess
) -> None:
    direct, through = (
        httpx.post(f"{url}/v1/{target}", json=fields | stream_fields, timeout=120) for url in (replica.base_url, gate.base_url)
    )
    assert direct.status_code == 200, direct.text
    if stream_fields:
        assert rejoined(through.content) == rejoined(direct.content)
    else:
        assert masked(through.content) == masked(direct.content)
    assert through.headers["content-type"] == direct.headers["content-type"]
    usage_asked = not stream_fields or "stream_options" in stream_fields
    assert (b'"completion_tokens":40' in through.content) == usage_asked


def finished(replica: VllmServer) -> int:
    """Return how many requests the engine has brought to their end; one whose client left is not among them."""
    return int(
        sum(float(value) for value in FINISHED.findall(httpx.get(f"{replica.base_url}/metrics", timeout=SERVER_S_MAX).text))
    )


async def leave_once_sent(request: LoadRequest, gate: KvgateProcess) -> None:
    """Send a request, close its connection once kvgate has sent it on, and wait until kvgate holds nothing for it."""
    async with httpx.AsyncClient(base_url=gate.admin_url, headers=CLOSING, timeout=60) as admin:

        async def state() -> dict[str, Any]:
            return dict((await admin.get("/admin/state")).json())

        sent = (await state())["counters"]["admitted"]
        upstream = new_upstream()
        client = asyncio.create_task(send(upstream, gate.base_url, request))
        for _ in range(1200):
            if (await state())["counters"]["admitted"] > sent:
                break
            await asyncio.sleep(0.02)
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        await upstream.aclose()
        for _ in range(1200):
            last = await state()
            if last["counters"]["admitted"] > sent and last["open"] == 0:
                return
            await asyncio.sleep(0.02)
        raise TimeoutError(f"kvgate still holds a lease for a client that left: {last}")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_engine(stream: bool, replica: VllmServer, gate: KvgateProcess) -> None:
    """A lone stream of this tiny model starves the engine's own server, which then sees too late that nobody listens: so it gets sixteen
    choices to sample, which slows its steps.
    """
    request = as_request(*chat("tiny", "leave", stream=stream, n=16, max_tokens=400, ignore_eos=True))
    for _ in range(5):
        await wait_idle(replica.base_url)
        before = finished(replica)
        await leave_once_sent(request, gate)
        await wait_idle(replica.base_url)
        if finished(replica) == before:
            return
    pytest.fail("the engine brought all of five requests to their end though their clients had left")


USER = [{"role": "user", "content": "hello"}]
FAULTY: dict[str, tuple[str, bytes]] = {
    "broken JSON": ("chat/completions", b'{"model": "tiny", "messages": [{"role"'),
    "empty body": ("chat/completions", b""),
    "not an object": ("completions", b"[1, 2]"),
    "not UTF-8": ("chat/completions", b'{"model": "tiny", "messages": "\xff\xfe"}'),
    **{
        name: (target, json.dumps({"model": "tiny"} | fields).encode())
        for name, target, fields in (
            ("messages of a wrong type", "chat/completions", {"messages": "hello"}),
            ("a message of a wrong type", "chat/completions", {"messages": [1]}),
            ("no messages", "chat/completions", {}),
            ("empty messages", "chat/completions", {"messages": []}),
            ("max_tokens of a wrong type", "chat/completions", {"messages": USER, "max_tokens": "many"}),
            ("max_tokens 0", "chat/completions", {"messages": USER, "max_tokens": 0}),
            ("max_tokens -1", "chat/completions", {"messages": USER, "max_tokens": -1}),
            ("max_tokens -1, completions", "completions", {"prompt": "a", "max_tokens": -1}),
            ("n 0", "chat/completions", {"messages": USER, "n": 0}),
            ("temperature -1", "chat/completions", {"messages": USER, "temperature": -1}),
            ("stream of a wrong type", "chat/completions", {"messages": USER, "stream": "perhaps"}),
            ("no prompt", "completions", {}),
            ("empty prompt", "completions", {"prompt": ""}),
            ("token ids out of range", "completions", {"prompt": [10**9]}),
        )
    },
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_request_gets_the_engines_own_answer(name: str, replica: VllmServer, gate: KvgateProcess) -> None:
    target, body = FAULTY[name]
    direct, through = (
        httpx.post(f"{url}/v1/{target}", content=body, headers={"content-type": "application/json"}, timeout=120)
        for url in (replica.base_url, gate.base_url)
    )
    assert (through.status_code, masked(through.content)) == (direct.status_code, masked(direct.content))


async def test_a_replica_without_metrics_is_served_on_own_accounting(
    vllm_server: VllmFactory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    silent = vllm_server(KV_BLOCKS, "--disable-log-stats")
    folder = tmp_path_factory.mktemp("silent")
    with kvgate_process(silent.base_url, silent.model_dir, folder, "--kv-blocks", str(KV_BLOCKS)) as gate:
        looks: list[dict[str, Any]] = []

        async def look() -> None:
            async with httpx.AsyncClient(headers=CLOSING, timeout=60) as client:
                while True:
                    looks.append((await client.get(f"{gate.admin_url}/admin/replicas")).json()[0])
                    await asyncio.sleep(0.2)

        looking = asyncio.create_task(look())
        _, summary = await run_load(gate.base_url, wave("tiny", seed=5)[:60], 40)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        assert await why_not_deciding(gate.admin_url) == ""
    assert summary.completed == summary.requests == 60, summary
    # forty such requests want more than twice the pool: only a gate that counts for itself keeps some waiting
    assert 1 < max(state["leases"] for state in looks) < 40
    assert max(state["placed_blocks"] + state["unplaced_blocks"] for state in looks) <= USABLE_BLOCKS
    assert all(state["measured_blocks"] is None for state in looks)


LONG = "time and again " * 70_000  # a megabyte
OWN_ANSWERS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "too long a prompt": ("completions", {"prompt": LONG}, "context_length_exceeded", "This model's maximum context length is 4096"),
    "too long a chat": (
        "chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "context_length_exceeded",
        "This model's maximum context length is 4096",
    ),
    "an unknown model": (
        "chat/completions", {"messages": USER, "model": "none-such"}, "model_not_found", "The model `none-such` does not exist."
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN_ANSWERS)
def test_what_kvgate_refuses_itself_reads_as_the_engine_would_say_it(name: str, replica: VllmServer, gate: KvgateProcess) -> None:
    target, fields, code, words = OWN_ANSWERS[name]
    direct, through = (
        httpx.post(f"{url}/v1/{target}", json={"model": "tiny"} | fields, timeout=120)
        for url in (replica.base_url, gate.base_url)
    )
    assert through.status_code == direct.status_code
    for answer in (direct, through):
        assert answer.json()["error"]["message"].startswith(words)
    assert through.json()["error"]["code"] == code
