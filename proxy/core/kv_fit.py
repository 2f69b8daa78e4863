"""Learns from an engine's usage what a request of a hybrid model holds, where the model's layers are not known.

Decides ``excess``: for every number ``m`` of groups beyond one full group, the cap ``c`` up to which m such groups are possible. With
``k_i`` blocks per full group of the sequences known to run, and U blocks measured in use,

    implied(m) = the c with  sum over i of  k_i + m * min(k_i, c)  =  U          (infinite when m full groups stay at or below U)

Whatever the truth (m*, c*) is, every honest sample implies at least c* for m*: U also counts what we do not know of (foreign traffic,
requests not seen placed), and that only raises it. So the least implied cap is kept, ``PHASE_BLOCKS`` more because a window touches up to
two blocks fewer as it moves, and the largest excess over all m is never below the truth while it comes down to it. Two samples in a
row must agree, and what was learned is forgotten after ``WINDOW_SAMPLES`` to ``2 * WINDOW_SAMPLES``, so that one odd reading costs nothing
for long.

What would lower U below the truth is left out: samples in which the engine has requests waiting or runs fewer than are decoding, and
sequences that were placed while the engine's prefix hit counter moved (they may hold blocks of others).

Regimes. Nothing seen: ``m`` full groups up to the layout's bound. Sequences shorter than the window: every m but the true one falls, and
the cap stays open. Longer ones: the cap closes.

Fails: kinds with two different windows are taken as one; mixed lengths leave the cap open until few run at once; chunks (Llama 4),
which are dropped all at once, are learned as small as they were seen, and the bias has to take the rest.
"""

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from proxy.core.grid import FloatArray
from proxy.core.kv_shape import KvShape
from proxy.core.ledger import Lease

WINDOW_SAMPLES = 600  # five to ten minutes of scrapes twice a second; a model does not change
KNOWN_BLOCKS_MIN = 4.0  # below, rounding decides
PHASE_BLOCKS = 2.0


def implied_cap(rows: FloatArray, groups: int, excess_blocks: float) -> float:
    """The cap c with ``groups * sum(min(rows, c)) == excess_blocks``; infinite when uncapped groups would hold no more than that.

    ``rows`` are blocks per full group, one entry per sequence.
    """
    target = max(0.0, excess_blocks) / groups
    ordered = np.sort(rows)
    below = np.concatenate(([0.0], np.cumsum(ordered)[:-1]))  # what those shorter than each hold together
    above = np.arange(len(ordered), 0, -1)
    sums = below + above * ordered  # sum(min(rows, c)) for c at each row
    if target >= sums[-1]:
        return inf  # nobody here is long enough to show a cap
    at = int(np.searchsorted(sums, target, side="left"))
    return float((target - below[at]) / above[at])


class KvFit:
    """What usage has shown of one replica. Every sample is given by the caller; nothing here reads a clock."""

    def __init__(self, shape: KvShape) -> None:
        assert shape.layout.fitted
        self.shape = shape
        self.samples = 0
        self._unlearned = shape
        self._groups = [groups for groups, _ in shape.excess]
        self._start = np.asarray([cap for _, cap in shape.excess])
        self._before: FloatArray | None = None
        self._older = self._start.copy()
        self._newer = self._start.copy()
        self._newer_samples = 0
        self._doubtful: set[str] = set()
        self._hits: float | None = None
        self._since_s = -inf

    def __repr__(self) -> str:
        """What was learned, for people and tests."""
        return f"<KvFit samples={self.samples} {self.shape!r}>"

    def scraped(
        self, leases: Mapping[str, Lease], known: set[str], used_blocks: float, hits_tokens_total: float | None, since_s: float
    ) -> bool:
        """Take in a scrape whose gauges are from after ``since_s``; ``known`` leases are certain to have held blocks then.

        Token slots are at least what a stream shows, and the prompt's. Copies share it: one of them is certain to hold it.
        """
        seen = [(lease_id, lease.placed and lease.placed_s < self._since_s) for lease_id, lease in leases.items()]
        self._since_s = since_s
        tokens = [
            part.tokens
            - 1
            + (min(lease.output_tokens / lease.demand.sequences, lease.output_tokens_max) if lease.streaming else 0.0)
            for lease_id in self.certain(seen, hits_tokens_total) & known
            for lease in (leases[lease_id],)
            for part in lease.demand.parts
        ]
        return self.observe(np.asarray(tokens, dtype=np.float64), used_blocks)

    def certain(self, leases: Sequence[tuple[str, bool]], hits_tokens_total: float | None) -> set[str]:
        """Of the leases given as (id, whether seen placed by the sample before), those whose blocks are nobody else's.

        Without the engine's prefix hit counter none is, unless it caches no prefixes.
        """
        if not self.shape.layout.prefix_caching:
            return {lease_id for lease_id, _ in leases}
        moved = hits_tokens_total is None or self._hits is None or hits_tokens_total != self._hits
        self._hits = hits_tokens_total
        self._doubtful &= {lease_id for lease_id, _ in leases}
        if moved:
            self._doubtful |= {lease_id for lease_id, placed in leases if not placed}
        if hits_tokens_total is None:
            return set()
        return {lease_id for lease_id, _ in leases} - self._doubtful

    def observe(self, tokens: FloatArray, used_blocks: float) -> bool:
        """Take in one scrape: token slots of the certain sequences, at least, and all blocks in use. True when the shape changed."""
        rows = np.ceil(tokens / self.shape.block_size)
        if rows.sum() < KNOWN_BLOCKS_MIN:
            self._before = None
            return False
        caps = np.asarray([implied_cap(rows, groups, used_blocks - float(rows.sum())) for groups in self._groups])
        before, self._before = self._before, caps
        if before is None:
            return False
        self.samples += 1
        self._newer = np.minimum(self._newer, np.maximum(caps, before))
        self._newer_samples += 1
        if self._newer_samples >= WINDOW_SAMPLES:
            self._older, self._newer, self._newer_samples = self._newer, self._start.copy(), 0
        return self._publish()

    def _publish(self) -> bool:
        caps = np.minimum(np.minimum(self._older, self._newer) + PHASE_BLOCKS, self._start)
        learned = tuple((groups, float(cap)) for groups, cap in zip(self._groups, caps, strict=True))
        if learned == self.shape.excess:
            return False
        self.shape = self._unlearned.with_excess(learned)
        return True

    def new_epoch(self) -> None:
        """The engine restarted: its counters and requests are gone; the model is the same."""
        self._before = self._hits = None
        self._doubtful.clear()
