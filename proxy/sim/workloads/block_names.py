"""From a recording's prefix hashes, which stand for so many tokens each, to names of an engine's blocks.

A prefix hash names everything from the first token to the end of its tokens. An engine block lies within what the hash at its last token
names, so (that hash, index of the block) names the block's content and all before it. Prompts that part inside one recorded hash seem
to part at its beginning: sharing is never overstated.
"""

from collections.abc import Sequence
from itertools import islice


class BlockNames:
    """Turns prefix hashes of ``hash_tokens`` tokens into names of blocks of ``block_size`` tokens; equal names are one object."""

    def __init__(self, hash_tokens: int, block_size: int) -> None:
        self.hash_tokens = hash_tokens
        self.block_size = block_size
        self._names: dict[tuple[int, int], tuple[int, ...]] = {}

    def of(self, hashes: Sequence[int], prompt_tokens: int) -> tuple[int, ...]:
        """Names of the prompt's full blocks, as far as ``hashes`` reach; the last of these may stand for fewer tokens than the others."""
        if self.hash_tokens == self.block_size:
            return tuple(hashes[: prompt_tokens // self.block_size])
        named_tokens = min(prompt_tokens, len(hashes) * self.hash_tokens)
        names = (name for place, one in enumerate(hashes) for name in self._within(one, place))
        return tuple(islice(names, named_tokens // self.block_size))

    def _within(self, prefix_hash: int, place: int) -> tuple[int, ...]:
        """Names of the blocks that end among the tokens of the hash at ``place``."""
        known = self._names.get((prefix_hash, place))
        if known is None:
            first, end = place * self.hash_tokens // self.block_size, (place + 1) * self.hash_tokens // self.block_size
            known = tuple(hash((0xB10C, self.block_size, prefix_hash, index)) for index in range(first, end))
            self._names[prefix_hash, place] = known
        return known
