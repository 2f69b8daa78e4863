"""vLLM's KV events as they come over the wire: msgpack batches ``[ts, [event, …], data_parallel_rank]`` (reference vllm.md §6).

Events are maps with a ``type`` since 0.24 and arrays that begin with the class name before; both are read. An event that is none of the
three, or lacks what we need, is left out and counted: one unreadable event must not stop the others.
"""

from dataclasses import dataclass
from typing import Any, TypeGuard

import msgspec

# The order of fields in the array form, after the class name (vLLM 0.10 to 0.23); later ones are only ever added at the end.
_STORED_FIELDS = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys")
_REMOVED_FIELDS = ("block_hashes", "medium")

BlockId = int | bytes  # the engine's own hash of a block


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Full blocks that the engine registered in its GPU cache, in the order of the prompt, each ``block_size`` of ``token_ids``.

    ``extras`` are the first block's extra keys: adapter name, cache salt, multimodal items; None where there are none.
    """

    blocks: tuple[BlockId, ...]
    parent: BlockId | None
    token_ids: tuple[int, ...]
    block_size: int
    adapter: str | None
    extras: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks that hold something else now."""

    blocks: tuple[BlockId, ...]


@dataclass(frozen=True, slots=True)
class AllCleared:
    """The prefix cache was reset."""


KvEvent = BlocksStored | BlocksRemoved | AllCleared


@dataclass(frozen=True, slots=True)
class KvBatch:
    """The events of one step. ``skipped`` could not be read."""

    events: tuple[KvEvent, ...]
    skipped: int = 0


def read_batch(payload: bytes) -> KvBatch:
    """Read one message. One that is no batch at all counts as one skipped event."""
    try:
        batch = msgspec.msgpack.decode(payload)
    except msgspec.DecodeError:
        return KvBatch((), 1)
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        return KvBatch((), 1)
    read = [_event(event) for event in batch[1]]
    return KvBatch(tuple(event for event in read if event is not None and event is not _ELSEWHERE), read.count(None))


_ELSEWHERE = BlocksRemoved(())  # about a cache that is not on the GPU, or of another kind of layers


def _event(event: Any) -> KvEvent | None:
    match event:
        case {"type": str() as kind}:
            return _of(kind, event)
        case [str() as kind, *values]:
            names = _STORED_FIELDS if kind == "BlockStored" else _REMOVED_FIELDS
            return _of(kind, dict(zip(names, values, strict=False)))
        case _:
            return None


def _of(kind: str, fields: dict[str, Any]) -> KvEvent | None:
    if kind == "AllBlocksCleared":
        return AllCleared()
    blocks = fields.get("block_hashes")
    if kind not in {"BlockStored", "BlockRemoved"} or not _ids(blocks):
        return None
    if fields.get("medium") not in {None, "GPU"} or fields.get("group_idx") not in {None, 0}:
        return _ELSEWHERE
    if kind == "BlockRemoved":
        return BlocksRemoved(tuple(blocks))
    tokens, size = fields.get("token_ids"), fields.get("block_size")
    if not isinstance(size, int) or not isinstance(tokens, list) or not all(_is_token(token) for token in tokens):
        return None
    parent = fields.get("parent_block_hash")
    if size < 1 or len(tokens) != size * len(blocks) or not (parent is None or _ids([parent])):
        return None
    extras = fields.get("extra_keys")
    first = extras[0] if isinstance(extras, list) and extras else None
    adapter = fields.get("lora_name")
    return BlocksStored(
        tuple(blocks), parent, tuple(tokens), size, adapter if isinstance(adapter, str) else None, tuple(first or ())
    )


def _is_token(token: Any) -> bool:
    return isinstance(token, int) and 0 <= token < 1 << 32


def _ids(blocks: Any) -> TypeGuard[list[BlockId]]:
    return isinstance(blocks, list) and all(isinstance(block, int | bytes) for block in blocks)
