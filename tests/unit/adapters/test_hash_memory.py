"""Hashes of a conversation's next turn are those of the whole prompt hashed anew, and the work is that of what it adds."""

import random
from array import array

import pytest

from proxy.adapters import block_hashes as module
from proxy.adapters.block_hashes import REMEMBERED_BLOCKS_MIN, HashMemory, block_hashes
from proxy.adapters.segment_cache import ID_BYTES

SALT = b"m\0"
BLOCK = 16


def ids(tokens: int, seed: int = 1) -> bytes:
    rng = random.Random(seed)
    return array("I", [rng.randrange(1 << 17) for _ in range(tokens)]).tobytes()


LONG = ids(BLOCK * REMEMBERED_BLOCKS_MIN + 5)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Blocks hashed by every call since."""
    real, calls = module.hashes_after, list[int]()

    def counted(parent_hash: int, some: bytes, block_size: int) -> tuple[int, ...]:
        calls.append(len(some) // ID_BYTES // block_size)
        return real(parent_hash, some, block_size)

    monkeypatch.setattr(module, "hashes_after", counted)
    return calls


def test_turns_hash_what_they_add(hashed: list[int]) -> None:
    memory, turn = HashMemory(), LONG
    for seed in range(4):
        turn += ids(100, seed)
        assert memory.hashes(turn, BLOCK, SALT) == block_hashes(turn, BLOCK, SALT)
    assert [blocks for blocks in hashed if blocks < REMEMBERED_BLOCKS_MIN] == [6, 7, 6], (
        "of 100 tokens each; the rest is the comparison"
    )


@pytest.mark.parametrize(
    ("prompt", "block_size", "salt"),
    [
        (LONG, BLOCK, b"other\0"),
        (LONG, BLOCK // 2, SALT),
        (ids(4, 9) + LONG, BLOCK, SALT),
        (LONG[: ID_BYTES * 300] + ids(5000, 8), BLOCK, SALT),
        (LONG[: -BLOCK * ID_BYTES], BLOCK, SALT),
        (LONG, BLOCK, SALT),
        (b"", BLOCK, SALT),
    ],
)
def test_what_is_remembered_never_changes_a_hash(prompt: bytes, block_size: int, salt: bytes) -> None:
    memory = HashMemory()
    memory.hashes(LONG, BLOCK, SALT)
    for _ in range(2):
        assert memory.hashes(prompt, block_size, salt) == block_hashes(prompt, block_size, salt)


def test_two_branches_of_a_conversation_both_go_on() -> None:
    memory = HashMemory()
    memory.hashes(LONG, BLOCK, SALT)
    for seed in (1, 2, 1, 2):
        branch = LONG + ids(400, seed)
        assert memory.hashes(branch, BLOCK, SALT) == block_hashes(branch, BLOCK, SALT)


def test_memory_is_bounded_and_the_longest_unused_goes_first(hashed: list[int]) -> None:
    one = HashMemory()
    one.hashes(LONG, BLOCK, SALT)
    memory = HashMemory(2 * one.bytes)
    prompts = [LONG, ids(len(LONG) // ID_BYTES, 2), ids(len(LONG) // ID_BYTES, 3)]
    for prompt in (prompts[0], prompts[1], prompts[0], prompts[2]):
        memory.hashes(prompt, BLOCK, SALT)
        assert memory.bytes <= 2 * one.bytes
    hashed.clear()
    memory.hashes(prompts[0], BLOCK, SALT)
    assert hashed == [0]
    memory.hashes(prompts[1], BLOCK, SALT)
    assert hashed == [0, REMEMBERED_BLOCKS_MIN]


def test_a_bound_of_nothing_keeps_nothing() -> None:
    memory = HashMemory(0)
    memory.hashes(LONG, BLOCK, SALT)
    assert memory.bytes == 0
