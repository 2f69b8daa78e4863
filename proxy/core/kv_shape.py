"""How many KV blocks a request holds, as a function of its tokens and of the model's attention layers.

The engine puts layers of one kind into *groups* of equally many layers; every group has a block table of its own, and all of them take
from one pool (vLLM 0.32 ``v1/core/kv_cache_utils``; held against its scheduler in ``tests/unit/core/test_kv_recordings.py``). Formula, for
``k = ceil(tokens / block_size)`` and groups ``g``:

    blocks(tokens) = sum over g of min(k, cap_g)
        full attention           cap = infinite           (plain models: one such group, so blocks = k exactly)
        sliding window of w      cap = ceil(w / block_size) + 1       w - 1 tokens before, two in flight, ends in the middle of blocks
        chunks of c (Llama 4)    cap = ceil(c / block_size) + 1       one token of the next chunk in flight
        state (Mamba, linear)    cap = 1, with prefix caching 2       the state, and the one it is being copied from

While a prompt is being prefilled, windows and chunks hold what is in flight as well (``prefill``): it comes free a step later.
The copies of one prompt share its full blocks as long as the group has not dropped them (``shared``).

Regimes. Plain: one group. Known: groups from the model's ``config.json``. Fitted: several groups of unknown kinds; ``core.kv_fit`` learns
``excess``, what they hold beyond one full group. Until then as many full groups as the widest pattern has, or what the engine says a
request of full length takes.

Fails: the caps are upper bounds, so a hybrid model is over-counted by up to one block and a state's second block per group. Speculative
drafts are not counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf

import numpy as np

from proxy.core.grid import FloatArray

# Granite 4 has 1 + 9, Gemma 3 and Nemotron-H have 1 + 6, Llama 4 1 + 3, gpt-oss 1 + 1.
GROUPS_MAX_GUESS = 10
# The largest default of max_num_batched_tokens, twice for asynchronous scheduling: for an engine that does not tell.
IN_FLIGHT_TOKENS_GUESS = 2 * 16_384
PADDED_RATIO = 1.5  # the engine pads the smaller kind of layers rather than split the larger, below this ratio


class Attention(StrEnum):
    """What a layer keeps of the tokens it has seen."""

    FULL = "full"  # everything
    WINDOW = "window"  # the last ``span_tokens``
    CHUNK = "chunk"  # the running chunk of ``span_tokens``
    STATE = "state"  # a state of fixed size


@dataclass(frozen=True, slots=True)
class LayerKind:
    """A kind of layers. ``span_tokens`` is 0 where nothing is dropped by position."""

    attention: Attention
    span_tokens: int = 0


@dataclass(frozen=True, slots=True)
class KvGroups:
    """``count`` groups of one kind."""

    kind: LayerKind
    count: int = 1


PLAIN = KvGroups(LayerKind(Attention.FULL))


@dataclass(frozen=True, slots=True)
class KvLayout:
    """What is known of a model's groups before anything was measured.

    ``fitted`` says that the groups are not known: what a request holds beyond one full group is then learned, from
    ``excess_blocks_max`` downward. ``in_flight_tokens_max`` are the tokens the engine may have scheduled and not yet settled.
    """

    groups: tuple[KvGroups, ...] = (PLAIN,)
    prefix_caching: bool = True
    in_flight_tokens_max: int = IN_FLIGHT_TOKENS_GUESS
    fitted: bool = False
    excess_blocks_max: float = inf

    @property
    def plain(self) -> bool:
        """One full-attention group: blocks are tokens over block size, rounded up."""
        return self.groups == (PLAIN,) and not self.fitted

    @property
    def shares_runs(self) -> bool:
        """Whether requests with a common prefix are certain to share it while both run.

        A hybrid finds a prefix only where all its groups still have it, and windows and states keep little of what is behind them.
        """
        return self.prefix_caching and self.plain


PLAIN_LAYOUT = KvLayout()


def grouped(layers: Iterable[tuple[LayerKind, int]]) -> tuple[KvGroups, ...]:
    """The groups into which the engine splits ``layers``, given as (kind, number of layers): equally many layers in each group.

    Raises ValueError when there is no layer.
    """
    counts: dict[LayerKind, int] = {}
    for kind, count in layers:
        counts[kind] = counts.get(kind, 0) + count
    counts = {kind: count for kind, count in counts.items() if count > 0}
    if not counts:
        raise ValueError("a model without attention or state layers holds no KV blocks")
    fewest, most = min(counts.values()), max(counts.values())
    size = most if most < PADDED_RATIO * fewest else fewest
    return tuple(KvGroups(kind, ceil(count / size)) for kind, count in counts.items())


def fitted_layout(excess_blocks_max: float = inf, *, prefix_caching: bool = True) -> KvLayout:
    """Several groups of unknown kinds. ``excess_blocks_max``: beyond one full group, for a request as long as the context."""
    return KvLayout(
        (KvGroups(PLAIN.kind, GROUPS_MAX_GUESS),), prefix_caching, fitted=True, excess_blocks_max=max(0.0, excess_blocks_max)
    )


class KvShape:
    """blocks(tokens) of one replica's model. Immutable; ``with_excess`` makes another one."""

    __slots__ = ("_caps", "_prefill_caps", "block_size", "excess", "layout", "plain")

    def __init__(
        self, block_size: int, layout: KvLayout | None = None, excess: tuple[tuple[int, float], ...] | None = None
    ) -> None:
        assert block_size >= 1, block_size
        self.block_size = block_size
        self.layout = PLAIN_LAYOUT if layout is None else layout
        self.plain = self.layout.plain
        self.excess = excess if excess is not None else self._excess_unlearned()
        self._caps = [(groups.count, self._cap(groups.kind, 2)) for groups in self.layout.groups]
        in_flight = self.layout.in_flight_tokens_max
        self._prefill_caps = [(groups.count, self._cap(groups.kind, in_flight)) for groups in self.layout.groups]

    def __repr__(self) -> str:
        """The groups, for people and tests."""
        if self.layout.fitted:
            return f"<KvShape block={self.block_size} fitted {self.excess}>"
        groups = " + ".join(f"{g.count} {g.kind.attention}({g.kind.span_tokens})" for g in self.layout.groups)
        return f"<KvShape block={self.block_size} {groups}>"

    def with_excess(self, excess: tuple[tuple[int, float], ...]) -> "KvShape":
        """The same model after the fit learned: for each (m, cap), m more groups of at most ``cap`` blocks are possible."""
        assert self.layout.fitted
        return KvShape(self.block_size, self.layout, excess)

    def blocks(self, tokens: FloatArray) -> FloatArray:
        """Blocks that a decoding sequence with ``tokens`` token slots holds at most; any array shape."""
        rows: FloatArray = np.ceil(tokens / self.block_size)
        return rows if self.plain else self._sum(rows, self._caps)

    def least(self, tokens: int) -> int:
        """Blocks that a decoding sequence with ``tokens`` token slots holds for certain: what can never fit is judged by it."""
        rows = ceil(tokens / self.block_size)
        if self.plain or self.layout.fitted:
            return rows
        return sum(groups.count * min(rows, self._cap_least(groups.kind, rows)) for groups in self.layout.groups)

    def prefill(self, tokens: FloatArray) -> FloatArray:
        """Blocks held at most while a prompt of ``tokens`` is being computed; never below ``blocks``."""
        rows: FloatArray = np.ceil(tokens / self.block_size)
        return rows if self.plain else self._sum(rows, self._prefill_caps)

    def held(
        self, prompt_tokens: FloatArray, tokens: FloatArray, copies: FloatArray, shares: FloatArray, *, prefilling: bool = False
    ) -> FloatArray:
        """Blocks of ``copies`` sequences of one prompt, each with ``tokens`` token slots; all arrays broadcast.

        Where ``shares`` is 1 the copies' common blocks count once, where it is 0 the engine looks up no prefix for them.
        """
        one = self.prefill(tokens) if prefilling else self.blocks(tokens)
        common = np.minimum(self.shared(prompt_tokens, tokens) * shares, one)
        together: FloatArray = common + copies * (one - common)
        return together

    def held_by(self, prompt_tokens: int, tokens: float, copies: int = 1, *, shares: bool = True) -> float:
        """As ``held``, for one prompt."""
        if not self.plain:
            return float(self.held(*np.array([[float(prompt_tokens)], [tokens], [float(copies)], [float(shares)]]))[0])
        one = ceil(tokens / self.block_size)
        if copies == 1:  # nearly all
            return float(one)
        common = (prompt_tokens - 1) // self.block_size if shares and self.layout.prefix_caching else 0
        return float(common + copies * (one - common))

    def shared(self, prompt_tokens: FloatArray, tokens: FloatArray) -> FloatArray:
        """Blocks that copies of one prompt hold together once each has ``tokens`` token slots: arrays that broadcast.

        At most the full blocks before the last prompt token; none without prefix caching.
        """
        full: FloatArray = np.floor((prompt_tokens - 1.0) / self.block_size)
        if not self.layout.prefix_caching:
            return np.zeros(np.broadcast_shapes(np.shape(prompt_tokens), np.shape(tokens)))
        if self.plain:
            return full
        if self.layout.fitted:
            return full + 0.0 * tokens
        total: FloatArray = np.zeros(np.broadcast_shapes(np.shape(prompt_tokens), np.shape(tokens)))
        for groups in self.layout.groups:
            total += groups.count * self._kept(groups.kind, full, tokens)
        return total

    def _kept(self, kind: LayerKind, full: FloatArray, tokens: FloatArray) -> FloatArray:
        match kind.attention:
            case Attention.FULL:
                return full
            case Attention.WINDOW:
                dropped = np.floor(np.maximum(tokens - kind.span_tokens, 0.0) / self.block_size)
            case Attention.CHUNK:
                dropped = np.floor(
                    np.floor(np.maximum(tokens - 1.0, 0.0) / kind.span_tokens) * kind.span_tokens / self.block_size
                )
            case Attention.STATE:
                return np.zeros(np.shape(full))
        kept: FloatArray = np.maximum(full - dropped, 0.0)
        return kept

    def _sum(self, rows: FloatArray, caps: list[tuple[int, float]]) -> FloatArray:
        if self.layout.fitted:
            excess: FloatArray = np.zeros(np.shape(rows))
            for groups, cap in self.excess:
                excess = np.maximum(excess, groups * np.minimum(rows, cap))
            return rows + excess
        total: FloatArray = np.zeros(np.shape(rows))
        for count, cap in caps:
            total += count * np.minimum(rows, cap)
        return total

    def _excess_unlearned(self) -> tuple[tuple[int, float], ...]:
        if not self.layout.fitted:
            return ()
        more = sum(groups.count for groups in self.layout.groups) - 1
        return tuple((count, self.layout.excess_blocks_max / count) for count in range(1, more + 1))

    def _cap_least(self, kind: LayerKind, rows: int) -> int:
        match kind.attention:
            case Attention.FULL:
                return rows
            case Attention.WINDOW:
                return max(1, (kind.span_tokens - 1) // self.block_size)
            case Attention.CHUNK | Attention.STATE:
                return 1

    def _cap(self, kind: LayerKind, in_flight_tokens: int) -> float:
        """Most blocks of one group with ``in_flight_tokens`` scheduled and not settled."""
        match kind.attention:
            case Attention.FULL:
                return inf
            case Attention.WINDOW:
                # A span of s tokens touches at most ceil((s - 1) / block_size) + 1 blocks.
                return ceil((kind.span_tokens - 2 + in_flight_tokens) / self.block_size) + 1.0
            case Attention.CHUNK:
                aligned = kind.span_tokens % self.block_size == 0  # else a chunk begins in the middle of a block
                return ceil((kind.span_tokens - 1 + in_flight_tokens) / self.block_size) + (0.0 if aligned else 1.0)
            case Attention.STATE:
                return 2.0 if self.layout.prefix_caching else 1.0
