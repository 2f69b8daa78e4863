"""What a replica tells of itself: a compromised one may lie about its load, and takes nothing else down."""

import gzip
import json
import time

import httpx
import pytest

from proxy.adapters.clock import SystemClock
from proxy.adapters.probe import ControlHttp
from proxy.adapters.remote_counter import ANSWER_BYTES_MAX, RemoteCounter, RemoteCountError
from proxy.ports.replicas import ReplicaUnreachableError
from proxy.serving.own_routes import _in_order
from proxy.serving.pass_through import model_of_form
from proxy.wire.call import Call, CallKind
from proxy.wire.read_call import read_call
from proxy.wire.vllm_metrics import usage_lookalikes

CPU_S_MAX = 5.0  # what took minutes takes milliseconds; in between lies every machine
BOMB = gzip.compress(gzip.compress(b" " * (1 << 24)))


def completion() -> Call:
    return read_call(CallKind.COMPLETIONS, b'{"model":"mock","prompt":"hi"}')


def counter(answer: httpx.Response) -> RemoteCounter:
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: answer))
    return RemoteCounter(client, lambda: "http://replica:8000", SystemClock())


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


async def test_a_packed_count_is_no_count() -> None:
    packed = gzip.compress(json.dumps({"tokens": [1, 2, 3]}).encode())
    with pytest.raises(RemoteCountError, match="something else"):
        await counter(httpx.Response(200, headers={"content-encoding": "gzip"}, content=packed)).count(completion())


async def test_a_count_without_end_is_cut_off() -> None:
    with pytest.raises(RemoteCountError, match="more than"):
        await counter(httpx.Response(200, content=b" " * (ANSWER_BYTES_MAX + 1))).count(completion())


async def test_a_deep_count_is_no_count() -> None:
    with pytest.raises(RemoteCountError, match="something else"):
        await counter(httpx.Response(200, content=b'{"x":' + b"[" * 100_000)).count(completion())


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
