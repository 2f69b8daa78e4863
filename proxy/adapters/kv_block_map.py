"""From the engine's block hashes to ours: chains our own hash over the token ids that events carry, along their parent links.

The engine's hashes cannot be computed here (its seed is its own), and need not be. What has no known parent (events missed before, or
an image in the prompt) is left out with all that follows it. Two blocks may carry one hash, each with events of its own: counted, so that
the content is gone only when the last copy is.

Only every ``stride``-th block is told on, as ``core.prefix_index`` keeps them.
"""

from array import array
from dataclasses import dataclass, field

from proxy.adapters.block_hashes import hash_salt, hashes_after, root_hash
from proxy.core.events import CacheTold
from proxy.core.prefix_index import stride_blocks
from proxy.wire.kv_events import AllCleared, BlockId, BlocksRemoved, BlocksStored, KvBatch


@dataclass(slots=True)
class _Known:
    """One block: our hashes of it (one per name its model goes by), how deep in its prompt it is, and how many copies there are."""

    hashes: tuple[int, ...]
    depth: int
    copies: int = 1


@dataclass(slots=True)
class KvBlockMap:
    """The blocks of one engine. ``names`` are those of its base model: clients may use any, and our hashes tell them apart."""

    replica: str
    names: tuple[str, ...]
    unknown_total: int = 0  # blocks whose parent was not known
    _known: dict[BlockId, _Known] = field(default_factory=dict)

    def __len__(self) -> int:
        """Blocks known."""
        return len(self._known)

    def forget(self) -> CacheTold:
        """Events were missed, or the engine is another: nothing is known any more."""
        self._known.clear()
        return CacheTold(self.replica, (), (), cleared=True)

    def apply(self, batch: KvBatch) -> list[CacheTold]:
        """What the batch says of cached prompts, in order."""
        told: list[CacheTold] = []
        for event in batch.events:
            match event:
                case BlocksStored():
                    told.append(CacheTold(self.replica, self._stored(event), ()))
                case BlocksRemoved(blocks):
                    told.append(CacheTold(self.replica, (), self._removed(blocks)))
                case AllCleared():
                    told.append(self.forget())
        return [one for one in told if one.stored or one.removed or one.cleared]

    def _stored(self, event: BlocksStored) -> tuple[int, ...]:
        start = self._start(event)
        if start is None:
            self.unknown_total += len(event.blocks)
            return ()
        ids = array("I", event.token_ids).tobytes()
        chains = [hashes_after(parent, ids, event.block_size) for parent in start.hashes]
        stride = stride_blocks(event.block_size)
        kept: list[int] = []
        for index, block in enumerate(event.blocks):
            depth = start.depth + index + 1
            known = self._known.get(block)
            if known is not None:
                known.copies += 1
                continue
            hashes = tuple(chain[index] for chain in chains)
            self._known[block] = _Known(hashes, depth)
            if depth % stride == 0:
                kept += hashes
        return tuple(kept)

    def _start(self, event: BlocksStored) -> _Known | None:
        """What the first block follows: its parent, or the beginning of a prompt."""
        if event.parent is not None:
            return self._known.get(event.parent)
        extras = [key for key in event.extras if key != event.adapter]
        salts = [key for key in extras if isinstance(key, str)]
        if len(salts) != len(extras) or len(salts) > 1:
            return None  # images or embeddings: their prompts are not hashed here
        names = self.names if event.adapter is None else (event.adapter,)
        return _Known(tuple(root_hash(hash_salt(name, salts[0] if salts else None)) for name in names), 0)

    def _removed(self, blocks: tuple[BlockId, ...]) -> tuple[int, ...]:
        gone: list[int] = []
        for block in blocks:
            known = self._known.get(block)
            if known is None:
                continue
            known.copies -= 1
            if known.copies <= 0:
                del self._known[block]
                gone += known.hashes
        return tuple(gone)
