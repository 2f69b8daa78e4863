"""From scrape to scrape: how many steps a replica did, and what they carried.

*Steps* are what the fastest of our streams advanced: it had a token in each. Without one, generated tokens / sequences running.
*Prefill* is the engine's prompt counter less its prefix hits, else the prompts of ours that came to stream. *Decoding* is its token
counter, else what our streams brought. *KV tokens* are the usage, else the ledger.

A window counts only while the replica ran something at both ends. Fails: between the ends it may have been idle for a moment; with
speculative decoding a step is one token of the fastest stream, as everywhere.
"""

from dataclasses import dataclass

from proxy.core.ledger import Ledger
from proxy.core.replica import EngineSample
from proxy.core.step_time import StepWindow

KV_SPARE_RATIO = 0.9  # below it no usual prompt waits for blocks


@dataclass(frozen=True, slots=True)
class _Look:
    """What one scrape leaves behind for the next. ``tokens`` per sequence, by lease that streams and is placed."""

    sample: EngineSample
    at_s: float
    tokens: dict[str, float]
    kv_tokens: float
    backlog_tokens: float

    def full(self, token_budget: float) -> bool:
        """Whether prompts waited in the engine because a step has no room for more: ours fill one, and nothing else is short."""
        sample = self.sample
        roomy = sample.kv_usage_ratio is not None and sample.kv_usage_ratio < KV_SPARE_RATIO
        return bool(sample.waiting_for_room) and roomy and self.backlog_tokens >= token_budget


class StepWatch:
    """Makes windows of one replica's scrapes."""

    def __init__(self, ledger: Ledger, usable_blocks: int) -> None:
        self._ledger = ledger
        self._usable_tokens = usable_blocks * ledger.block_size
        self._last: _Look | None = None

    def forget(self) -> None:
        """A new engine epoch."""
        self._last = None

    def window(
        self, sample: EngineSample, at_s: float, *, backlog_tokens: float, prefill_outlook: float, token_budget: float
    ) -> StepWindow | None:
        """What happened since the last scrape; None where the replica was idle or cannot be seen."""
        tokens = {
            name: lease.output_tokens / lease.demand.sequences
            for name, lease in self._ledger.leases.items()
            if lease.streaming and lease.placed
        }
        usage = sample.kv_usage_ratio
        kv_tokens = float(self._ledger.total.mean[0]) * self._ledger.block_size if usage is None else usage * self._usable_tokens
        before, after = self._last, _Look(sample, at_s, tokens, kv_tokens, backlog_tokens)
        self._last = after
        if before is None or at_s <= before.at_s or not before.sample.running or not sample.running:
            return None
        return self._between(before, after, prefill_outlook, token_budget)

    def _between(self, before: _Look, after: _Look, prefill_outlook: float, token_budget: float) -> StepWindow | None:
        was, now = before.sample, after.sample
        generated = _delta(was.generation_tokens_total, now.generation_tokens_total)
        moved = [tokens - before.tokens[name] for name, tokens in after.tokens.items() if name in before.tokens]
        if moved:
            steps = max(moved)  # 0: the time belongs to a step still under way
        elif generated:
            steps = generated / (((was.running or 0) + (now.running or 0)) / 2.0)
        else:
            return None
        prompts = _delta(was.prompt_tokens_total, now.prompt_tokens_total)
        if prompts is None:
            news = [name for name in after.tokens if name not in before.tokens]
            prompts = float(sum(self._ledger.leases[name].demand.prompt_tokens for name in news))
        hits = _delta(was.prefix_hits_tokens_total, now.prefix_hits_tokens_total) or 0.0
        return StepWindow(
            seconds=after.at_s - before.at_s,
            steps=max(0.0, steps),
            prefill_tokens=max(0.0, prompts - hits),
            output_tokens=sum(moved) if generated is None else generated,
            kv_tokens=(before.kv_tokens + after.kv_tokens) / 2.0,
            prefill_outlook=prefill_outlook,
            prefill_waiting=all(look.full(token_budget) for look in (before, after)),
        )


def _delta(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)
