"""Tokens become blocks, rounded up; a pool is what one engine can hand out."""

import pytest

from proxy.core.units import blocks_for_tokens, usable_blocks


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (48, 3), (49, 4)])
def test_tokens_fill_whole_blocks(tokens: int, blocks: int) -> None:
    assert blocks_for_tokens(tokens, 16) == blocks


@pytest.mark.parametrize(
    ("num_gpu_blocks", "engines", "usable"),
    [(11, 1, 10), (2000, 1, 1999), (2000, 2, 999), (1, 1, 0), (0, 1, 0), (3, 4, 0)],
)
def test_each_engine_keeps_one_null_block(num_gpu_blocks: int, engines: int, usable: int) -> None:
    assert usable_blocks(num_gpu_blocks, engines) == usable


def test_impossible_sizes_are_our_bug() -> None:
    with pytest.raises(AssertionError):
        blocks_for_tokens(1, 0)
    with pytest.raises(AssertionError):
        usable_blocks(10, 0)
