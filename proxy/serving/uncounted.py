"""Lets prompts go uncounted while their exact length cannot matter (``core.plenty``): the idle proxy adds only the relay.

They go with the length that the engine's usage has taught to expect of so many bytes. Every ``COUNTED_EVERY``-th is counted all the same,
but no more than one in ``COUNTED_EVERY_S``, so that counts go on being compared with the engine's. ``slack_tokens``: by how much the bounds
of those in flight exceed what is expected.

Nor are those counted whose tenant has nothing left of its rate: what is refused for certain is to cost little, or a loud tenant would
take the processor from the others.
"""

from math import inf

from proxy.core.book import Book
from proxy.core.gate import Gate
from proxy.core.plenty import bound_tokens_max
from proxy.ports import Clock, PromptCount, TokenCounter
from proxy.wire.call import Call

COUNTED_EVERY = 32  # 3 % of the work; a template that has drifted shows within some dozen requests
COUNTED_EVERY_S = 0.1  # a drift that shows within a second is seen soon enough, however many thousand come in it


class Uncounted:
    """Those in flight. What ``take`` gives is to be given back with ``ended``."""

    def __init__(self, gate: Gate, counter: TokenCounter, clock: Clock) -> None:
        self.slack_tokens = 0
        self.exact_for = 0  # whoever wants every count exact: recordings under way
        self._gate = gate
        self._counter = counter
        self._clock = clock
        self._turn = 0
        self._counted_s = -inf  # when one was last counted in its turn

    def __repr__(self) -> str:
        """State for people and tests: slack 0 when idle."""
        return f"<Uncounted slack_tokens={self.slack_tokens}>"

    def take(self, call: Call, books: list[Book], *, refused: bool = False) -> PromptCount | None:
        """What to expect of a prompt that need not be counted; None: count it. ``refused``: it will be, whatever its length."""
        if self.exact_for:
            return None
        if refused:
            return self._expected(call, min((book.spec.usable_blocks * book.spec.block_size for book in books), default=0))
        tokens_max = bound_tokens_max(self._gate, books, self.slack_tokens)
        if tokens_max <= 0:
            return None
        self._turn += 1
        if self._turn >= COUNTED_EVERY and (now_s := self._clock.now_s()) - self._counted_s >= COUNTED_EVERY_S:
            self._turn, self._counted_s = 0, now_s
            return None
        return self._expected(call, tokens_max)

    def _expected(self, call: Call, tokens_max: int) -> PromptCount | None:
        expected = self._counter.expect(call, tokens_max)
        if expected is not None:
            self.slack_tokens += expected.slack_tokens
        return expected

    def ended(self, counted: PromptCount | None) -> None:
        """The request is over, or is to be counted anew."""
        if counted is not None:
            self.slack_tokens -= counted.slack_tokens
