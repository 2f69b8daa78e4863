"""The engine that the other tests here rely on is the one they think it is."""

import re
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from tests.bench.engine import SERVER_S_MAX
from tests.vllm.conftest import BLOCK_SIZE, CONTEXT_TOKENS, VllmServer

pytestmark = pytest.mark.vllm

TEXT = "The same text, counted twice: 10 + 20 = 30, naïve café 你好."


def completion(replica: VllmServer, **fields: Any) -> dict[str, Any]:
    """Return the answer to a completion request."""
    answer = httpx.post(f"{replica.base_url}/v1/completions", json={"model": replica.served_name} | fields, timeout=120)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_the_engine_counts_a_prompt_as_the_shipped_tokenizer_does(replica: VllmServer) -> None:
    tokenizer = Tokenizer.from_file("proxy/sim/tokenizer/tokenizer.json")
    assert completion(replica, prompt=TEXT, max_tokens=1)["usage"]["prompt_tokens"] == len(tokenizer.encode(TEXT).ids)


def test_an_output_is_exactly_as_long_as_asked(replica: VllmServer) -> None:
    # The model is noise: without ignore_eos one token in 4,096 would end the answer.
    body = completion(replica, prompt=TEXT, max_tokens=300, ignore_eos=True)
    assert body["usage"]["completion_tokens"] == 300
    assert body["choices"][0]["finish_reason"] == "length"


def test_the_engine_has_the_blocks_it_was_given(replica: VllmServer) -> None:
    metrics = httpx.get(f"{replica.base_url}/metrics", timeout=SERVER_S_MAX).text
    (config,) = re.findall(r"^vllm:cache_config_info\{(.*)\}", metrics, re.MULTILINE)
    assert f'num_gpu_blocks="{replica.kv_blocks}"' in config
    assert f'block_size="{BLOCK_SIZE}"' in config
    models = httpx.get(f"{replica.base_url}/v1/models", timeout=SERVER_S_MAX).json()
    assert models["data"][0]["max_model_len"] == CONTEXT_TOKENS
