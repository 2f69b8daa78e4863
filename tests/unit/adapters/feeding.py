"""Feeds of a fake vLLM, and expositions with a start time and a token count."""

from proxy.adapters.scraper import VllmFeed
from proxy.ports import Clock
from tests.unit.adapters.fake_vllm import FakeVllm, SteppingClock, recorded

START = b"process_start_time_seconds 1.79596915255e+09\n"
TOKENS = b'vllm:generation_tokens_total{engine="0",model_name="tiny"} 1405.0\n'


def exposition(started_s: float | None = 1_750_000_000.0, tokens: int = 1405) -> bytes:
    text = recorded("0.32.0").replace(TOKENS, TOKENS.replace(b"1405.0", b"%d" % tokens))
    assert START in text
    return text.replace(START, b"" if started_s is None else b"process_start_time_seconds %f\n" % started_s)


def feed_of(fake: FakeVllm, *, clock: Clock | None = None, kv_blocks: int | None = None, timeout_s: float = 5.0) -> VllmFeed:
    return VllmFeed(
        "r0",
        "http://replica:8000",
        clock or SteppingClock(),
        headers={},
        timeout_s=timeout_s,
        kv_blocks=kv_blocks,
        transport=fake.transport,
    )
