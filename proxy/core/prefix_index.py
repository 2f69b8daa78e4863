"""Which prompt blocks one replica still has cached, whether anybody holds them now or not.

An image of the engine's prefix cache in our own block hashes (reference vllm.md §2.5). Blocks of running requests are held; at a
request's end its blocks go to the recently used end of the idle list, its tail evicted before its head; whatever does not fit into the
pool pushes out the idle blocks used longest ago. Blocks that outputs filled take room as well, under no hash we could know.

    pool = held + idle,    idle evicted from its oldest end while pool > usable blocks

Only every ``stride``-th block of a prompt is kept, one for about ``STRIDE_TOKENS`` tokens: a hit is known to within that many tokens,
and a decision or a placement costs an eighth. Within a prompt the cached blocks are its first ones (parents are used whenever their
children are), so the longest hit is found by halving.

Fed by our own placements and ends, or by the engine's own events (``stored``, ``removed``, ``clear``) where they are on.

Fails: traffic that bypasses us evicts blocks which this image still has; ``HitCredit`` learns from the engine's counters how far
hits promised here come true, and routing counts only that share of them.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

STRIDE_TOKENS = 128  # a prefill of 128 tokens costs about what one decode step does: a finer answer would change no decision
CREDIT_PRIOR_TOKENS = 20_000.0  # a few prompts' worth of hits are believed before the counters say anything
CREDIT_KEPT = 0.98  # of the past, per scrape: at two scrapes a second the last half minute decides


def stride_blocks(block_size: int) -> int:
    """How many blocks stand for one entry of the index."""
    return max(1, STRIDE_TOKENS // block_size)


class PrefixIndex:
    """One replica's cached prefixes. ``keys`` are the hashes of every ``stride``-th full block of a prompt (``keys_of``)."""

    def __init__(self, capacity_blocks: int, block_size: int) -> None:
        self.stride = stride_blocks(block_size)
        self.entry_tokens = self.stride * block_size
        self._capacity = max(0, capacity_blocks)
        self._held: dict[Hashable, int] = {}
        self._idle: OrderedDict[Hashable, int] = OrderedDict()
        self._blocks = 0  # held and idle
        self._told = False  # the engine's own events say what comes and goes

    def __repr__(self) -> str:
        """Counts for people and tests."""
        return f"<PrefixIndex held={len(self._held)} idle={len(self._idle)} blocks={self._blocks}/{self._capacity}>"

    def __len__(self) -> int:
        """Entries, held and idle."""
        return len(self._held) + len(self._idle)

    def keys_of(self, block_hashes: Sequence[int]) -> Sequence[int]:
        """The hashes that this index goes by."""
        return block_hashes[self.stride - 1 :: self.stride]

    def hit_tokens(self, keys: Sequence[int]) -> int:
        """Tokens of the longest cached prefix, a multiple of ``entry_tokens``: O(log len(keys))."""
        held, idle = self._held, self._idle
        if not keys or not (keys[0] in held or keys[0] in idle):
            return 0

        def cached(index: int) -> bool:
            return keys[index] in held or keys[index] in idle

        low, high = 1, len(keys) + 1  # the first ``low`` are cached, the first ``high`` are not
        while high - low > 1:
            middle = (low + high) // 2
            if cached(middle - 1):
                low = middle
            else:
                high = middle
        return low * self.entry_tokens

    # ---- what we place there

    def place(self, keys: Iterable[int]) -> None:
        """A request with this prompt was sent: the engine registers blocks when it schedules them, before they are computed."""
        for key in keys:
            holders = self._held.get(key)
            if holders is not None:
                self._held[key] = holders + 1
                continue
            self._held[key] = 1
            if self._idle.pop(key, None) is None:
                self._blocks += self.stride
        self._evict()

    def fill(self, blocks: int) -> None:
        """Blocks that an output or a prompt's unhashed rest filled: they stay cached too, under hashes unknown to us."""
        if blocks > 0 and not self._told:
            self._idle[object()] = blocks
            self._blocks += blocks
            self._evict()

    def end(self, keys: Sequence[int]) -> None:
        """The request ended; what it filled besides its prompt is told by ``fill`` before, since it is evicted before."""
        for key in reversed(keys):
            holders = self._held.get(key, 0)
            if holders > 1:
                self._held[key] = holders - 1
            elif holders == 1:
                del self._held[key]
                self._idle[key] = self.stride
        self._evict()

    def _evict(self) -> None:
        while self._blocks > self._capacity and self._idle:
            _, blocks = self._idle.popitem(last=False)
            self._blocks -= blocks

    # ---- what the engine tells

    def stored(self, keys: Iterable[int]) -> None:
        """The engine registered these. From the first time on, what it evicts is what it says, and the pool's size only a bound."""
        self._told = True
        for key in keys:
            if key in self._held:
                continue
            if self._idle.pop(key, None) is None:
                self._blocks += self.stride
            self._idle[key] = self.stride
        self._evict()

    def removed(self, keys: Iterable[int]) -> None:
        """The engine handed these blocks out for something else. What somebody holds it cannot have: then a copy went."""
        for key in keys:
            blocks = self._idle.pop(key, None)
            if blocks is not None:
                self._blocks -= blocks

    def clear(self) -> None:
        """Nothing is cached any more but what is held: the engine's prefix cache was reset."""
        self._idle.clear()
        self._blocks = len(self._held) * self.stride

    def forget(self) -> None:
        """A new engine: nothing is cached or held."""
        self._held.clear()
        self.clear()


class HitCredit:
    """How far promised hits come true, by the engine's own counters: counted hit tokens over those expected, at most 1."""

    def __init__(self) -> None:
        self.expected_tokens_total = 0
        self.counted_tokens_total = 0.0
        self._expected = 0.0
        self._counted = 0.0
        self._last: float | None = None

    @property
    def ratio(self) -> float:
        """Share of an expected hit to count on, 0..1."""
        return min(1.0, (self._counted + CREDIT_PRIOR_TOKENS) / (self._expected + CREDIT_PRIOR_TOKENS))

    def expect(self, tokens: int) -> None:
        """A request was sent that should find ``tokens`` of its prompt cached."""
        self.expected_tokens_total += tokens
        self._expected += tokens

    def observe(self, hits_tokens_total: float | None) -> None:
        """Take in the engine's counter of tokens found cached. None: it does not tell, and expectations are believed."""
        if hits_tokens_total is None:
            self._expected = self._counted = 0.0
            self._last = None
            return
        if self._last is None:
            self._expected = 0.0  # sent before the counter was first seen
        else:
            counted = max(0.0, hits_tokens_total - self._last)
            self.counted_tokens_total += counted
            self._counted = CREDIT_KEPT * self._counted + counted
            self._expected *= CREDIT_KEPT
        self._last = hits_tokens_total

    def new_epoch(self) -> None:
        """A new engine counts from zero."""
        self._expected = self._counted = 0.0
        self._last = None
