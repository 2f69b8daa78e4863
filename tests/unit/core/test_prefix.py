"""Shared blocks: who holds what, who comes and goes in which order, and the block of the last prompt token that is never shared."""

import pytest

from proxy.core.prefix import SharedBlocks
from proxy.sim.engine import Engine
from proxy.sim.engine_requests import EngineRequest, EngineSettings

A, B, C, X, Y = 11, 12, 13, 21, 22


def shared(*rows: tuple[int, ...]) -> SharedBlocks:
    """Rows 0, 1, … with these hashes, all of which may hit."""
    blocks = SharedBlocks()
    for row, hashes in enumerate(rows):
        blocks.add(row, hashes, len(hashes))
    return blocks


def runs_of(blocks: SharedBlocks) -> dict[tuple[int, ...], int]:
    return {members: count for count, members in blocks.runs()}


def test_hits_are_the_leading_blocks_somebody_holds() -> None:
    blocks = shared((A, B, C))
    assert blocks.hits((A, B, C), 3) == 3
    assert blocks.hits((A, B, X), 3) == 2
    assert blocks.hits((X, B, C), 3) == 0  # a hash chain has no hole
    assert blocks.hits((A, B, C), 2) == 2  # the engine computes the last block anew
    assert blocks.hits((), 0) == 0


def test_one_holder_shares_nothing() -> None:
    assert shared((A, B)).runs() == []


def test_runs_group_blocks_by_their_sharers() -> None:
    assert runs_of(shared((A, B, C), (A, B, X), (A, Y))) == {(0, 1, 2): 1, (0, 1): 1}


@pytest.mark.parametrize("leaver", [0, 1])
def test_the_rest_stays_shared_whoever_leaves_first(leaver: int) -> None:
    blocks = shared((A, B), (A, B), (A,))
    blocks.remove(leaver)
    assert runs_of(blocks) == {(1 - leaver, 2): 1}
    assert blocks.hits((A, B), 2) == 2


def test_with_the_last_sharer_the_blocks_are_gone() -> None:
    blocks = shared((A, B), (A, B))
    blocks.remove(0)
    assert (blocks.runs(), len(blocks)) == ([], 2)
    blocks.remove(1)
    assert (blocks.hits((A, B), 2), len(blocks)) == (0, 0)


def test_a_private_copy_of_a_held_block_shares_nothing() -> None:
    """Prompts of exactly three blocks: the third holds the last token, so the second request computes its own."""
    blocks = SharedBlocks()
    blocks.add(0, (A, B, C), 2)
    blocks.add(1, (A, B, C), 2)
    assert runs_of(blocks) == {(0, 1): 2}
    blocks.remove(0)
    assert runs_of(blocks) == {}
    assert blocks.hits((A, B, C), 3) == 2


def test_sharers_name_the_rows_behind_a_discount() -> None:
    assert shared((A, B), (A,)).sharers((A, B)) == {frozenset({0, 1}): 1, frozenset({0}): 1}


def test_rows_without_hashes_may_come_and_go() -> None:
    blocks = shared((), (A,))
    blocks.remove(0)
    blocks.remove(0)
    assert len(blocks) == 1


def test_a_row_is_added_once() -> None:
    blocks = shared((A,))
    with pytest.raises(AssertionError):
        blocks.add(0, (A,), 1)


def test_a_last_full_block_gives_no_discount() -> None:
    """Held against the engine: 16 tokens come and go, 16 come again (their own copy), 17 then hit the freed copy, not the held one."""
    engine = Engine(EngineSettings(num_gpu_blocks=100, block_size=16))
    engine.add(EngineRequest("first", 16, None, 50, (A,)))
    engine.step()
    engine.abort("first")
    engine.add(EngineRequest("again", 16, None, 50, (A,)))
    engine.step()
    engine.add(EngineRequest("longer", 17, None, 50, (A,)))
    engine.step()
    assert engine.used_blocks == 1 + 1 + 2  # "again" decodes into its second block
    blocks = SharedBlocks()
    blocks.add(0, (A,), 15 // 16)
    assert blocks.hits((A,), 16 // 16) == 0
