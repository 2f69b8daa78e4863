"""The mock against answers recorded from the real vLLM 0.32: status, headers and every byte of the body that can be equal."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from proxy.sim.mock_text import MockTokenizer
from tests.integration.mock_cases import CASES, CONTEXT, MODEL, masked
from tests.integration.mock_harness import RunningMock, running, settings

RECORDINGS = json.loads(Path(__file__).with_name("mock_recordings.json").read_text(encoding="utf-8"))
COMPARED_HEADERS = {"content-type", "vary", "allow", "transfer-encoding", "endpoint-load-metrics", "www-authenticate"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mock() -> AsyncIterator[RunningMock]:
    async with running(
        settings(model=MODEL, engine={"block_size": 32, "num_gpu_blocks": 256, "max_model_len": CONTEXT})
    ) as server:
        yield server


def test_every_case_was_recorded() -> None:
    assert set(CASES) == set(RECORDINGS)
    assert len(CASES) > 100


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", CASES)
async def test_answer_is_the_real_one(mock: RunningMock, name: str) -> None:
    answer = await mock.request(*CASES[name])
    recorded = RECORDINGS[name]
    assert answer.status == recorded["status"]
    assert masked(answer.body) == recorded["events"]
    assert sorted([key, value] for key, value in answer.headers.items() if key in COMPARED_HEADERS) == recorded["headers"]


def test_the_recorded_prompts_are_longer_than_the_context_here_too() -> None:
    assert len(MockTokenizer().encode("word " * 5000)) > CONTEXT
