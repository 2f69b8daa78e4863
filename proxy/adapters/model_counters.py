"""One token counter per model: what replicas serve decides which tokenizer counts a call.

A model whose tokenizer is not loaded (yet, or never) is counted by the fallback, which asks the replica's ``/tokenize`` and then estimates.
Pools are shared by models of the same tokenizer, so that a LoRA adapter costs nothing.
"""

from collections import Counter
from collections.abc import Iterable

from proxy.adapters.tokenizer_pool import TokenizerPool
from proxy.core.demand import CountSource
from proxy.ports import PromptCount, TokenizerStats
from proxy.wire.call import Call


class ModelCounters:
    """``ports.TokenCounter`` over several pools."""

    def __init__(self, fallback: TokenizerPool) -> None:
        self._fallback = fallback
        self._by_model: dict[str, TokenizerPool] = {}
        self._pools: list[TokenizerPool] = [fallback]

    def known(self, model: str) -> bool:
        """Whether the model has a tokenizer of its own here."""
        return model in self._by_model

    def use(self, models: Iterable[str], pool: TokenizerPool) -> None:
        """Count these models with ``pool`` from now on."""
        self._pools.append(pool)
        for model in models:
            self._by_model[model] = pool

    def bound(self, *, backlog_max: int, backlog_bytes_max: int) -> None:
        """Let so much wait in each pool from now on."""
        for pool in self._pools:
            pool.bound(backlog_max=backlog_max, backlog_bytes_max=backlog_bytes_max)

    def _pool(self, model: str | None) -> TokenizerPool:
        if model is None and len(set(map(id, self._by_model.values()))) == 1:
            return next(iter(self._by_model.values()))  # the engine takes its own, and there is only one
        return self._by_model.get(model or "", self._fallback)

    async def count(self, call: Call, *, block_size: int, context_tokens_max: int | None) -> PromptCount:
        """Count with the call's model's tokenizer. Raises PromptTooLongError."""
        return await self._pool(call.model).count(call, block_size=block_size, context_tokens_max=context_tokens_max)

    def expect(self, call: Call, bound_tokens_max: int) -> PromptCount | None:
        """What the call's model's counter expects, uncounted."""
        return self._pool(call.model).expect(call, bound_tokens_max)

    def learn(self, call: Call, count: PromptCount, prompt_tokens: int) -> None:
        """Hand the engine's count to the pool that counted."""
        self._pool(call.model).learn(call, count, prompt_tokens)

    def stats(self) -> TokenizerStats:
        """The sum over all pools; the last error of any."""
        every = [pool.stats() for pool in self._pools]
        by_source: Counter[CountSource] = Counter()
        for one in every:
            by_source.update(one.counted_by_source)
        return TokenizerStats(
            counted_by_source={source: by_source[source] for source in CountSource},
            compared=sum(one.compared for one in every),
            mismatches=sum(one.mismatches for one in every),
            mismatch_tokens_abs_sum=sum(one.mismatch_tokens_abs_sum for one in every),
            backlog=sum(one.backlog for one in every),
            backlog_bytes=sum(one.backlog_bytes for one in every),
            backlog_overflows=sum(one.backlog_overflows for one in every),
            cache_bytes=sum(one.cache_bytes for one in every),
            last_error=next((one.last_error for one in every if one.last_error), None),
        )

    async def aclose(self) -> None:
        """Close every pool."""
        for pool in self._pools:
            await pool.aclose()
