"""Chained hashes of a prompt's full blocks: equal hashes mean equal tokens from the prompt's start to that block's end.

``h[i] = blake2b-64(h[i-1] ‖ ids of block i)``, ``h[-1] = blake2b-64(salt)``. The hash is the same in every process, and nobody can
make two different prompts collide without 2^32 tries. About 1.2 µs a block.
"""

import threading
from collections import OrderedDict
from hashlib import blake2b

from proxy.adapters.segment_cache import ID_BYTES

_HASH_BYTES = 8
REMEMBERED_BLOCKS_MIN = 256  # hashing fewer takes a third of a millisecond
REMEMBERED_BYTES_MAX = 16 << 20  # some 25 conversations of 100,000 tokens
_HASH_KEPT_BYTES = 40  # an int of 64 bits and its place in a tuple


def block_hashes(ids: bytes, block_size: int, salt: bytes) -> tuple[int, ...]:
    """Hashes of the full blocks of ``ids`` (packed 32-bit, native order); a rest that fills no block has none."""
    return hashes_after(root_hash(salt), ids, block_size)


class HashMemory:
    """Hashes of the long prompts seen last, so that a conversation's next turn hashes only what it adds. Safe from several threads.

    A prompt that begins as a remembered one did, whole blocks, goes on from there and takes its place; one that a template wrote anew
    somewhere (a system prompt with the time, thinking that is left out) is hashed from its start.
    """

    def __init__(self, bytes_max: int = REMEMBERED_BYTES_MAX) -> None:
        """``bytes_max`` bounds ids and hashes that are kept; 0 keeps nothing."""
        self._bytes_max = bytes_max
        self._known: OrderedDict[tuple[bytes, int, bytes], tuple[int, ...]] = (
            OrderedDict()
        )  # by salt, block size and ids; last used last
        self._lock = threading.Lock()
        self.bytes = 0

    def hashes(self, ids: bytes, block_size: int, salt: bytes) -> tuple[int, ...]:
        """As ``block_hashes``."""
        width = block_size * ID_BYTES
        blocks = len(ids) // width
        if blocks < REMEMBERED_BLOCKS_MIN:
            return block_hashes(ids, block_size, salt)
        begun, known = self._begun(ids, block_size, salt)
        parent = known[-1] if known else root_hash(salt)
        hashes = known + hashes_after(parent, ids[len(begun) :], block_size)
        self._remember((salt, block_size, ids[: blocks * width]), hashes, (salt, block_size, begun))
        return hashes

    def _begun(self, ids: bytes, block_size: int, salt: bytes) -> tuple[bytes, tuple[int, ...]]:
        """The longest remembered prompt that this one begins with, and its hashes; nothing where there is none."""
        with self._lock:
            found = (
                (begun, hashes)
                for (its_salt, its_size, begun), hashes in self._known.items()
                if its_size == block_size and its_salt == salt and ids.startswith(begun)
            )
            return max(found, key=lambda one: len(one[0]), default=(b"", ()))

    def _remember(self, key: tuple[bytes, int, bytes], hashes: tuple[int, ...], instead: tuple[bytes, int, bytes]) -> None:
        with self._lock:
            for gone in (instead, key):
                if (known := self._known.pop(gone, None)) is not None:
                    self.bytes -= _kept_bytes(gone, known)
            self._known[key] = hashes
            self.bytes += _kept_bytes(key, hashes)
            while self.bytes > self._bytes_max:
                gone, known = self._known.popitem(last=False)
                self.bytes -= _kept_bytes(gone, known)


def _kept_bytes(key: tuple[bytes, int, bytes], hashes: tuple[int, ...]) -> int:
    return len(key[2]) + _HASH_KEPT_BYTES * len(hashes)


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
