"""Chooses a model's KV layout from its layers and from what the engine tells of its cache; where they disagree, the engine is right.

``kv_cache_size_tokens`` is int(blocks ÷ R × context), with R the blocks of one request as long as the context (reference vllm.md §3.3).
So R is known without reading any file, and it tells one group from several: R = ceil(context ÷ block size) is one full-attention group.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from proxy.core.kv_shape import PLAIN, Attention, KvGroups, KvLayout, fitted_layout, grouped
from proxy.wire import report
from proxy.wire.model_layers import ModelLayers

STATE_BLOCKS_MAX = 4  # the two of a state, a checkpoint, and one of drafts


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """What the engine tells, per engine; None where it does not."""

    block_size: int | None
    blocks: int | None
    context_tokens_max: int | None
    kv_cache_size_tokens: int | None
    prefix_caching: bool

    @property
    def longest(self) -> "Longest | None":
        """What the engine says of a request as long as the context."""
        size, context, tokens = self.block_size, self.context_tokens_max, self.kv_cache_size_tokens
        if not (size and self.blocks and context and tokens):
            return None
        return Longest(size, context, max(1, round(self.blocks * context / tokens)))


@dataclass(frozen=True, slots=True)
class Longest:
    """A request as long as the context takes ``blocks`` over all groups, by the engine's own account."""

    block_size: int
    context_tokens: int
    blocks: int

    @property
    def plain_blocks(self) -> int:
        """What it would take in one full-attention group."""
        return ceil(self.context_tokens / self.block_size)


def choose_layout(layers: ModelLayers | None, sizes: CacheSizes) -> tuple[KvLayout, tuple[str, ...]]:
    """The layout, and warnings that say what to do. ``layers`` is None where no ``config.json`` could be read."""
    longest = sizes.longest
    known = None if layers is None or layers.kinds is None else grouped(layers.kinds)
    caching = sizes.prefix_caching
    if longest is None:
        if known is not None:
            return KvLayout(known, caching), ()
        if layers is None or layers.doubt is None:
            return KvLayout(prefix_caching=caching), ()
        return fitted_layout(prefix_caching=caching), (report.warn_layers_unknown(layers.doubt),)
    plain, told = longest.plain_blocks, longest.blocks
    if told == plain:  # also a hybrid under --disable-hybrid-kv-cache-manager
        return KvLayout(prefix_caching=caching), ()
    if known is not None and (in_flight := _in_flight_tokens(known, longest)) is not None:
        return KvLayout(known, caching, in_flight), ()
    if told < plain:
        return KvLayout(prefix_caching=caching), (report.warn_larger_capacity(told, plain, known == (PLAIN,)),)
    doubt = None
    if layers is not None:
        doubt = layers.doubt or ("one full-attention group" if known == (PLAIN,) else "its groups would take another number")
    return fitted_layout(told - plain, prefix_caching=caching), (report.warn_odd_capacity(told, plain, doubt),)


def longest_request_blocks(
    groups: Iterable[KvGroups], block_size: int, context_tokens: int, in_flight_tokens: int
) -> tuple[int, int]:
    """Least and most blocks that the engine counts for a request as long as the context; they differ only where there are states."""
    low = high = 0
    for each in groups:
        span = each.kind.span_tokens
        match each.kind.attention:
            case Attention.FULL:
                least = most = ceil(context_tokens / block_size)
            case Attention.WINDOW:
                least = most = ceil(min(span - 1 + in_flight_tokens, context_tokens) / block_size) + 1
            case Attention.CHUNK:
                least = most = ceil(min(span + in_flight_tokens, context_tokens) / block_size)
            case Attention.STATE:
                least, most = 1, STATE_BLOCKS_MAX
        low, high = low + each.count * least, high + each.count * most
    return low, high


def _in_flight_tokens(groups: tuple[KvGroups, ...], longest: Longest) -> int | None:
    """The tokens in flight with which ``groups`` take as many blocks as told; None when no number does."""
    context, told = longest.context_tokens, longest.blocks

    def blocks(in_flight: int) -> tuple[int, int]:
        return longest_request_blocks(groups, longest.block_size, context, in_flight)

    if blocks(1)[0] > told or blocks(context)[1] < told:
        return None
    lower, upper = 1, context  # the least number that is enough: blocks grow with it
    while lower < upper:
        middle = (lower + upper) // 2
        if blocks(middle)[1] < told:
            lower = middle + 1
        else:
            upper = middle
    return lower + longest.block_size - 1  # the engine rounds up to blocks: any number up to here gives the same
