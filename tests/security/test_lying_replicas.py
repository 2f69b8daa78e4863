"""What a replica tells of itself: a compromised one may lie about its load, and takes nothing else down."""

import gzip
import json
import logging
import time
from array import array
from collections.abc import Mapping
from contextlib import AsyncExitStack

import httpx
import pytest

from proxy.adapters.clock import SystemClock
from proxy.adapters.control_http import ControlHttp
from proxy.adapters.remote_counter import ANSWER_BYTES_MAX, RemoteCounter, RemoteCountError
from proxy.adapters.upstream import HttpUpstream
from proxy.ports.replicas import ReplicaUnreachableError
from proxy.serving.own_routes import _in_order
from proxy.serving.pass_through import model_of_form
from proxy.wire.call import Call, CallKind
from proxy.wire.read_call import read_call
from proxy.wire.vllm_metrics import usage_lookalikes
from tests.integration.serving.harness import proxying, until
from tests.integration.serving.test_reroutes import SERVED
from tests.security.attacked import answer_like_an_engine
from tests.support.upstream_servers import Peer, ScriptedUpstream

CPU_S_MAX = 5.0  # what took minutes takes milliseconds; in between lies every machine
PAGE_BYTES_MAX = 4_000_000
LINE_CHARS_MAX = 20_000
BOMB = gzip.compress(gzip.compress(b" " * (1 << 24)))


def completion() -> Call:
    return read_call(CallKind.COMPLETIONS, b'{"model":"mock","prompt":"hi"}')


async def counted_by(body: bytes, fields: bytes = b"") -> list[bytes]:
    """What is counted where ``/tokenize`` answers this."""

    async def answer(peer: Peer) -> None:
        await peer.request()
        peer.writer.write(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n" % (fields, len(body)))
        peer.writer.write(body)
        await peer.writer.drain()

    upstream = HttpUpstream()
    async with ScriptedUpstream.running(answer) as server:
        try:
            return await RemoteCounter(upstream, lambda: server.url, SystemClock(), timeout_s=60.0).count(completion())
        finally:
            await upstream.aclose()


async def test_a_packed_answer_to_a_probe_is_not_unpacked() -> None:
    answer = httpx.Response(200, headers={"content-encoding": "gzip, gzip"}, content=BOMB)
    http = ControlHttp(
        "http://replica:8000", SystemClock(), headers={}, timeout_s=5.0, transport=httpx.MockTransport(lambda _: answer)
    )
    try:
        with pytest.raises(ReplicaUnreachableError, match="compressed"):
            await http.get("/metrics")
    finally:
        await http.aclose()


async def test_an_honest_count_is_taken() -> None:
    assert await counted_by(b'{"tokens":[1,2,3]}') == [array("I", [1, 2, 3]).tobytes()]


async def test_a_packed_count_is_no_count() -> None:
    packed = gzip.compress(json.dumps({"tokens": [1, 2, 3]}).encode())
    with pytest.raises(RemoteCountError, match="something else"):
        await counted_by(packed, b"content-encoding: gzip\r\n")


async def test_a_count_without_end_is_cut_off() -> None:
    with pytest.raises(RemoteCountError, match="more than"):
        await counted_by(b" " * (ANSWER_BYTES_MAX + 1))


async def test_a_deep_count_is_no_count() -> None:
    with pytest.raises(RemoteCountError, match="something else"):
        await counted_by(b'{"x":' + b"[" * 100_000)


@pytest.mark.parametrize("version", ["", "0.32.0", "²", "٣.1", "9" * 5000, "a.b.c", "1..2"])
def test_any_version_has_its_place(version: str) -> None:
    assert _in_order(version) <= (10**9, 10**9, 10**9)


def test_names_of_metrics_are_looked_through_once() -> None:
    """A pattern with three open ends took the cube of a line's length: minutes for 20 KB, on the event loop."""
    begun_s = time.process_time()
    assert usage_lookalikes(b"vllm:" + b"cacheusage" * 2000 + b"\nvllm:kv_cache_usage_share 0.5\n") == (
        "vllm:kv_cache_usage_share",
    )
    assert time.process_time() - begun_s < CPU_S_MAX


def test_a_form_is_read_once() -> None:
    """A pattern that began anew at every field took the square of a body's length: of a few hundred KB, minutes."""
    begun_s = time.process_time()
    assert model_of_form(b"--x\r\n" + b'name="model"\r\n' * 40_000) is None
    assert model_of_form(b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nmock\r\n--x--\r\n') == "mock"
    assert time.process_time() - begun_s < CPU_S_MAX


class Liar:
    """A replica that serves, and tells of itself what it likes: bodies by path, else what an engine tells."""

    def __init__(self, told: Mapping[str, bytes]) -> None:
        self.told = told
        self.asked: set[str] = set()

    async def __call__(self, peer: Peer) -> None:
        head, _ = await peer.request()
        path = head.split(b" ")[1].decode().partition("?")[0].rstrip("/")
        self.asked.add(path)
        body = self.told.get(path)
        if head.startswith(b"POST"):
            await peer.send(SERVED)
        elif body is None:
            await answer_like_an_engine(peer, head)
        else:
            kind = b"text/plain" if path == "/metrics" else b"application/json"
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body))


HUGE = b"9" * 4000


def models(*cards: object) -> bytes:
    return json.dumps({"object": "list", "data": cards}).encode()


def metrics(engines: int = 1, blocks: bytes = b"1001", block: bytes = b"16", value: bytes = b"0.0") -> bytes:
    head = b'vllm:cache_config_info{block_size="%b",engine="0",num_gpu_blocks="%b"} 1.0\n' % (block, blocks)
    names = (b"num_requests_running", b"num_requests_waiting", b"kv_cache_usage_perc", b"num_preemptions_total")
    series = b"".join(b'vllm:%b{engine="%d",model_name="mock"} %b\n' % (name, n, value) for n in range(engines) for name in names)
    return b"# TYPE vllm:num_requests_running gauge\n" + head + series + b"process_start_time_seconds 1.7e9\n"


def server_info(value: bytes) -> bytes:
    parts = {b"scheduler_config": [b"max_num_seqs"], b"parallel_config": [b"data_parallel_size"],
             b"cache_config": [b"block_size", b"num_gpu_blocks", b"kv_cache_size_tokens"]}  # fmt: skip
    sections = (b'"%b":{%b}' % (name, b",".join(b'"%b":%b' % (key, value) for key in keys)) for name, keys in parts.items())
    return b'{"vllm_config":{%b}}' % b",".join(sections)


MOCK = {"id": "mock", "max_model_len": 4096}
LIES: dict[str, dict[str, bytes]] = {
    "thousands of models": {"/v1/models": models(MOCK, *({"id": f"m{n}", "max_model_len": 9} for n in range(20_000)))},
    "a name without end": {"/v1/models": models(MOCK, {"id": "m" * 500_000})},
    "names that nothing can write": {"/v1/models": models(MOCK, {"id": "\ud800"}, {"id": 'a"\n\x1b[2J\u2028'}, {"id": ""})},
    "a context of 4000 digits": {"/v1/models": b'{"data":[{"id":"mock","max_model_len":%b}]}' % HUGE},
    "a context below nothing": {"/v1/models": models(MOCK | {"max_model_len": -5})},
    "a context that is no number": {"/v1/models": models(MOCK | {"max_model_len": "x"}, {"id": "n", "max_model_len": True})},
    "deep cards": {"/v1/models": b'{"data":[{"id":"mock","x":%b}]}' % (b"[" * 90_000 + b"]" * 90_000)},
    "thousands of engines": {"/metrics": metrics(engines=3000)},
    "a pool without end": {"/metrics": metrics(blocks=b"1e308")},
    "a pool of 4000 digits": {"/metrics": metrics(blocks=HUGE)},
    "a block of 4000 digits": {"/metrics": metrics(block=HUGE)},
    "blocks of nothing": {"/metrics": metrics(block=b"0", blocks=b"0")},
    "loads without end": {"/metrics": metrics(value=b"1e308")},
    "loads that are no number": {"/metrics": metrics(value=b"NaN")},
    "loads beyond all": {"/metrics": metrics(value=b"+Inf")},
    "loads below nothing": {"/metrics": metrics(value=b"-1e308")},
    "numbers of 4000 digits": {"/server_info": server_info(HUGE), "/metrics": b"# TYPE x gauge\nx 1\n"},
    "numbers of 400 digits": {"/server_info": server_info(HUGE[:400]), "/metrics": b"# TYPE x gauge\nx 1\n"},
    "numbers of another kind": {"/server_info": server_info(b'[{"a":1}]'), "/metrics": b"# TYPE x gauge\nx 1\n"},
    "a version without end": {"/version": json.dumps({"version": "9" * 500_000}).encode()},
    "a version that no terminal should see": {"/version": json.dumps({"version": "\x1b[2J\n\u2028<script>\ud800"}).encode()},
}


@pytest.mark.slow
async def test_no_lie_takes_anything_else_down(caplog: pytest.LogCaptureFixture) -> None:
    """All of them beside one that is honest: everybody is served, every page can be shown, and nothing breaks inside."""
    caplog.set_level(logging.INFO)
    async with AsyncExitStack() as stack:
        liars = {what: (await stack.enter_async_context(ScriptedUpstream.running(Liar(told)))).url for what, told in LIES.items()}
        liars["none"] = (await stack.enter_async_context(ScriptedUpstream.running(Liar({})))).url
        names = {what: f"r{number}" for number, what in enumerate(liars)}
        replicas = [{"url": url, "name": names[what]} for what, url in liars.items()]
        proxy = await stack.enter_async_context(proxying(policy={"replicas": replicas}, probed=False))
        watchers = proxy.services.watchers
        await watchers[names["none"]].found.wait()
        await until(lambda: all(one.facts is not None or one.failures for one in watchers.values()), "a look at each", 60.0)
        await until(lambda: not proxy.services.loading(), "the tokenizers", 60.0)
        refused = {what for what, name in names.items() if watchers[name].facts is None}
        assert refused == {"deep cards", "thousands of engines"}
        for _ in range(2 * len(liars)):
            assert (await proxy.wire.chat(max_tokens=2)).status == 200
        for page in ("/v1/models", "/metrics", "/ready", "/version", "/load"):
            reply = await proxy.wire.request("GET", page)
            assert (page, reply.status, len(reply.body) < PAGE_BYTES_MAX) == (page, 200, True)
            reply.body.decode()
        faults = [line for line in proxy.metrics.splitlines() if line.startswith("kvgate_internal_errors_total{")]
        assert [line for line in faults if not line.endswith(" 0.0")] == []
        assert len(proxy.services.dispatcher.gate.fleet.books) <= len(liars)
        await proxy.until_idle()
    assert max(len(record.getMessage()) for record in caplog.records) < LINE_CHARS_MAX
