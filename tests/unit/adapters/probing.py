"""Probes of a fake vLLM, and the sentence with which one fails."""

import pytest

from proxy.adapters.control_http import ControlHttp
from proxy.adapters.probe import Probed, probe_replica
from proxy.core.epoch import EpochJudge
from proxy.ports.replicas import ReplicaUnreachableError
from tests.unit.adapters.fake_vllm import FakeVllm, SteppingClock

URL = "http://replica:8000"


async def probe(
    fake: FakeVllm, *, kv_blocks: int | None = None, url: str = URL, headers: dict[str, str] | None = None, timeout_s: float = 5.0
) -> Probed:
    http = ControlHttp(url, SteppingClock(), headers=headers or {}, timeout_s=timeout_s, transport=fake.transport)
    try:
        return await probe_replica(http, EpochJudge(), kv_blocks=kv_blocks)
    finally:
        await http.aclose()


async def failure(fake: FakeVllm, **kwargs: object) -> str:
    with pytest.raises(ReplicaUnreachableError) as caught:
        await probe(fake, **kwargs)  # type: ignore[arg-type]
    return str(caught.value)
