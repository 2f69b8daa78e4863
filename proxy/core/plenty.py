"""Whether the exact length of a prompt can change what becomes of its request.

Bytes bound tokens from above. While even the bounds of everything that was not counted leave the pool half empty at its forecast peak,

    matters = room_ratio - blocks(slack_tokens + bound_tokens) / usable_blocks < SPARE_RATIO

no count can change a decision about KV, and the request goes with an expected length (``room_ratio``: what the ledger, with the expected
lengths, leaves of the pool; ``slack_tokens``: by how much the bounds of those in flight exceed their expected lengths).

Regimes. A roomy pool with one engine: nothing is counted, and the proxy adds the relay. As headroom shrinks, newcomers are counted, and
those that were not drain away. Several engines: always counted, since routing wants to know which prompt begins as which. Hybrid
models, tenants with rates or shares, classes by length, other proxies on the pool, a cache that must come back: always counted.

Fails: prefill targets see the expected length, which is off by some per cent; the prefixes of uncounted prompts are unknown, so that those
who share them are charged for them in full until the last of these has ended. Both are safe for KV.
"""

from proxy.core.book import Book
from proxy.core.gate import Gate
from proxy.core.outcome import Mode
from proxy.core.replica import ReplicaPhase

SPARE_RATIO = 0.5  # of the pool: what is not counted cannot be what fills the rest
BOUND_RATIO_MAX = 0.05  # of the pool for one prompt: so few of them overlook nothing that a count would show


def bound_tokens_max(gate: Gate, books: list[Book], slack_tokens: int) -> int:
    """The largest bound, in tokens, of a prompt for one of ``books`` whose exact length does not matter now; 0: every length matters."""
    if gate.mode is not Mode.ENFORCE or gate.several is not None or gate.rates.active or gate.shares.active:
        return 0
    if len(books) != 1 or len(gate.queue):
        return 0
    book = books[0]
    if book.phase is not ReplicaPhase.SERVING or not book.ledger.shape.plain or book.saturation.guard.recovering:
        return 0
    usable_tokens = book.spec.usable_blocks * book.ledger.block_size
    spare_tokens = (book.room_ratio - SPARE_RATIO) * usable_tokens - slack_tokens
    return max(0, min(int(spare_tokens), int(BOUND_RATIO_MAX * usable_tokens), book.spec.context_tokens_max - 1))
