"""The engine's KV block pool: free queue, reference counts and the prefix cache (reference: vLLM v1 ``block_pool``).

Formula: ``used = num_blocks − 1 − free``; block 0 is the null block and never leaves the pool. A block whose last holder leaves
goes to the tail of the free queue when it carries a hash (recently used content is evicted last) and to the front when it
does not (reused first). Its hash is dropped only when it is handed out again, so cached content nobody holds counts as free.
Fails: taking more blocks than are free is our bug and asserts; the engine asks ``free`` first.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """``num_blocks`` blocks including the null block. Every operation costs time in the blocks it moves, never in tokens."""

    __slots__ = ("_blocks_of_hash", "_free", "_hash_of_block", "_holders", "_num_blocks", "free")

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks={num_blocks}: an engine needs at least 2 blocks, one of them is the null block")
        self._num_blocks = num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._holders = [0] * num_blocks
        self._hash_of_block: list[int | None] = [None] * num_blocks
        # Identical prompts prefilled together register one hash on several blocks; the oldest serves, any may be evicted first.
        self._blocks_of_hash: dict[int, dict[int, None]] = {}
        self.free = num_blocks - 1

    @property
    def usable(self) -> int:
        """Blocks that can be handed out at all."""
        return self._num_blocks - 1

    @property
    def used(self) -> int:
        """Blocks with at least one holder; a shared block counts once."""
        return self._num_blocks - 1 - self.free

    def longest_hit(self, hashes: Sequence[int], blocks_max: int) -> list[int]:
        """Blocks that hold the longest registered prefix of ``hashes``, at most ``blocks_max``. Takes no reference."""
        found: list[int] = []
        blocks_of_hash = self._blocks_of_hash
        for index in range(min(blocks_max, len(hashes))):
            blocks = blocks_of_hash.get(hashes[index])
            if blocks is None:
                break
            found.append(next(iter(blocks)))
        return found

    def unheld(self, blocks: Iterable[int]) -> int:
        """How many of ``blocks`` nobody holds: they leave the free queue when they are shared."""
        holders = self._holders
        return sum(not holders[block] for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks that already hold content, after a prefix hit."""
        for block in blocks:
            if not self._holders[block]:
                del self._free[block]
                self.free -= 1
            self._holders[block] += 1

    def take(self, count: int) -> list[int]:
        """Hold ``count`` blocks from the front of the free queue; their old content leaves the prefix cache."""
        assert count <= self.free, (count, self.free)
        taken = []
        for _ in range(count):
            block, _none = self._free.popitem(last=False)
            self._forget(block)
            self._holders[block] = 1
            taken.append(block)
        self.free -= count
        return taken

    def register(self, block: int, block_hash: int) -> None:
        """Publish a full block's content in the prefix cache, from before it is computed (as the engine does)."""
        self._hash_of_block[block] = block_hash
        self._blocks_of_hash.setdefault(block_hash, {})[block] = None

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of a request's blocks, given in prompt order: its tail is evicted before its head."""
        cached: list[int] = []
        plain: list[int] = []
        holders = self._holders
        for block in reversed(blocks):
            holders[block] -= 1
            if not holders[block]:
                (plain if self._hash_of_block[block] is None else cached).append(block)
        free = self._free
        for block in reversed(plain):
            free[block] = None
            free.move_to_end(block, last=False)
        for block in cached:
            free[block] = None
        self.free += len(plain) + len(cached)

    def _forget(self, block: int) -> None:
        block_hash = self._hash_of_block[block]
        if block_hash is None:
            return
        self._hash_of_block[block] = None
        blocks = self._blocks_of_hash[block_hash]
        del blocks[block]
        if not blocks:
            del self._blocks_of_hash[block_hash]
