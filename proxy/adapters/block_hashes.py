"""Chained hashes of a prompt's full blocks: equal hashes mean equal tokens from the prompt's start to that block's end.

``h[i] = blake2b-64(h[i-1] ‖ ids of block i)``, ``h[-1] = blake2b-64(salt)``. The hash is the same in every process, and nobody can
make two different prompts collide without 2^32 tries. About 1.2 µs a block.
"""

from hashlib import blake2b

from proxy.adapters.segment_cache import ID_BYTES

_HASH_BYTES = 8


def block_hashes(ids: bytes, block_size: int, salt: bytes) -> tuple[int, ...]:
    """Hashes of the full blocks of ``ids`` (packed 32-bit, native order); a rest that fills no block has none."""
    return hashes_after(root_hash(salt), ids, block_size)


def root_hash(salt: bytes) -> int:
    """What the first block's hash is chained to."""
    return int.from_bytes(blake2b(salt, digest_size=_HASH_BYTES).digest(), "little")


def hashes_after(parent_hash: int, ids: bytes, block_size: int) -> tuple[int, ...]:
    """Hashes of the full blocks of ``ids`` that follow the block of ``parent_hash``."""
    width = block_size * ID_BYTES
    parent = parent_hash.to_bytes(_HASH_BYTES, "little")
    hashes: list[int] = []
    for start in range(0, len(ids) - width + 1, width):
        parent = blake2b(parent + ids[start : start + width], digest_size=_HASH_BYTES).digest()
        hashes.append(int.from_bytes(parent, "little"))
    return tuple(hashes)


def hash_salt(model: str | None, cache_salt: str | None) -> bytes:
    """What keeps prompts of different models (LoRA adapters too) and cache salts apart."""
    return (model or "").encode("utf-8", "surrogatepass") + b"\0" + (cache_salt or "").encode("utf-8", "surrogatepass")
