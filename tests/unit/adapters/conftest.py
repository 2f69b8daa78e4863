"""Fixtures of the tests that count prompts: a small tokenizer, and pools that are closed in the end."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from proxy.adapters.ratio_counter import RatioCounter
from proxy.adapters.tokenizer_files import LoadedTokenizer, open_tokenizer
from proxy.adapters.tokenizer_pool import TokenizerPool
from tests.support.tiny_tokenizer import write_model


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> LoadedTokenizer:
    return open_tokenizer(str(write_model(tmp_path_factory.mktemp("model"))), wall_s=lambda: 0.0)


@pytest.fixture
async def make_pool() -> AsyncIterator[Callable[..., TokenizerPool]]:
    pools: list[TokenizerPool] = []

    def make(source: LoadedTokenizer | None, **options: Any) -> TokenizerPool:
        pools.append(TokenizerPool(source, **({"remote": None, "ratio": RatioCounter()} | options)))
        return pools[-1]

    yield make
    for pool in pools:
        await pool.aclose()
