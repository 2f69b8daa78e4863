"""The step time of an engine is found again from what the requests of a recording took."""

from itertools import islice

import pytest
from msgspec import structs

from proxy.sim.admission import PlainForwarding
from proxy.sim.engine_requests import EngineSettings, StepReport
from proxy.sim.recorded_steps import REQUESTS_MIN, fitted_step_time
from proxy.sim.sim_request import SimResult
from proxy.sim.step_time import StepTimeModel
from proxy.sim.workloads import load_workload
from proxy.sim.world import Listed, World, WorldSettings
from proxy.wire.recording import RecordedRequest

TRUE = StepTimeModel(12e-3, 0.02e-3, 0.05e-3, 40e-9)
LOADS = ((0, 4, 2000), (60, 12, 7000), (15, 30, 20000))  # prefill tokens, sequences, KV tokens of a step


def row(result: SimResult) -> RecordedRequest:
    """What a proxy would have recorded of it."""
    assert result.first_s is not None
    assert result.end_s is not None
    return RecordedRequest(
        result.arrived_s, result.request.prompt_tokens, result.output_tokens, "stop", replica=result.replica,
        block_hashes=result.request.block_hashes, queue_wait_s=0.0, ttft_seen_s=result.first_s - result.arrived_s,
        total_s=result.end_s - result.arrived_s,
    )  # fmt: skip


def recorded(count: int, replicas: int = 1) -> list[RecordedRequest]:
    """Chats on engines with the step time ``TRUE``."""
    settings = WorldSettings(
        replicas=replicas, engine=EngineSettings(num_gpu_blocks=4001, block_size=16, max_model_len=8192), step_time=TRUE
    )
    asked = Listed(islice(load_workload("chat", 1).arrivals(4.0), count))
    return [row(one) for one in World(settings, PlainForwarding(), asked).run().results.values()]


def seconds(model: StepTimeModel, load: tuple[int, int, int]) -> float:
    prefill, sequences, kv_tokens = load
    return model.seconds(
        StepReport(0, {}, [], [], [], [], prefill_tokens=prefill, decode_sequences=sequences, kv_tokens=kv_tokens, used_blocks=0,
                   running=0, waiting=0)
    )  # fmt: skip


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_step_time_is_found_again(replicas: int) -> None:
    found = fitted_step_time(recorded(150, replicas))
    assert found is not None
    for load in LOADS[: 3 - replicas]:
        assert seconds(found, load) == pytest.approx(seconds(TRUE, load), rel=0.01)


def test_few_requests_and_those_that_did_not_stream_tell_nothing() -> None:
    rows = recorded(REQUESTS_MIN + 10)
    assert fitted_step_time(rows) is not None
    assert fitted_step_time(rows[: REQUESTS_MIN - 1]) is None
    assert fitted_step_time([]) is None
    for nothing in ({"ttft_seen_s": None}, {"replica": None}, {"total_s": None}, {"copies": 2}):
        assert fitted_step_time([structs.replace(one, **nothing) for one in rows]) is None


def test_no_term_is_negative() -> None:
    """Steps that got faster the more ran beside are told as steps of one length."""
    rows = recorded(100)
    faster = [
        RecordedRequest(float(index // 10), 100, 101, "stop", replica="a", ttft_seen_s=0.1, total_s=0.1 + 2.0 / (1 + index % 10))
        for index in range(100)
    ]
    for found in (fitted_step_time(rows), fitted_step_time(faster)):
        assert found is not None
        assert min(found.base_s, found.prefill_token_s, found.decode_sequence_s, found.kv_token_s) >= 0.0
