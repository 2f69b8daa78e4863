"""Gets each model its tokenizer as replicas are found, off the event loop.

Tried in order: the policy's ``tokenizer`` (for the models of the first replica found: it names one), what the replica says it loaded the
model from, the model's own names. What cannot be had is said once, with what counts instead.
"""

import asyncio
import logging
from collections.abc import Callable

from proxy.adapters.clock import SystemClock
from proxy.adapters.freed_memory import give_back
from proxy.adapters.model_counters import ModelCounters
from proxy.adapters.ratio_counter import RatioCounter
from proxy.adapters.remote_counter import RemoteCounter
from proxy.adapters.tokenizer_files import LoadedTokenizer, TokenizerLoadError, open_tokenizer
from proxy.adapters.tokenizer_pool import TokenizerPool
from proxy.core.policy import Policy
from proxy.core.replica import ReplicaFacts
from proxy.ports import Upstream
from proxy.wire.report import names_shown

NAMES_TRIED_MAX = 8  # base models come first, and adapters have none of their own

log = logging.getLogger("kvgate.tokenizer")


class TokenizerLoader:
    """``counters`` is what requests are counted with; ``loading`` tells whether a tokenizer is on its way."""

    def __init__(self, policy: Policy, upstream: Upstream, clock: SystemClock, ask: Callable[[str | None], str | None]) -> None:
        self._policy = policy
        self._upstream = upstream
        self._clock = clock
        self._ask = ask
        self._given = policy.tokenizer
        self._seen: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.counters = ModelCounters(self._pool(None, None))

    def follow(self, policy: Policy) -> None:
        """Another policy rules: its limits hold for what is loaded and for what will be."""
        self._policy, limits = policy, policy.limits
        self.counters.bound(backlog_max=limits.tokenizer_backlog_max, backlog_bytes_max=limits.tokenizer_backlog_bytes_max)

    def loading(self) -> bool:
        """Whether somebody's tokenizer is being loaded."""
        return bool(self._tasks)

    def found(self, facts: ReplicaFacts) -> None:
        """A replica told its models: load what is not known yet."""
        models = [model for model in facts.models if model not in self._seen]
        if not models:
            return
        self._seen.update(models)
        names = [name for name in (self._given, facts.model_root, *facts.models[:NAMES_TRIED_MAX]) if name]
        self._given = None
        task = asyncio.get_running_loop().create_task(self._load(models, list(dict.fromkeys(names))))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, models: list[str], names: list[str]) -> None:
        reasons = []
        for name in names:
            try:
                source = await asyncio.to_thread(open_tokenizer, name, wall_s=self._clock.wall_s)
            except TokenizerLoadError as error:
                reasons.append(str(error))
                continue
            self.counters.use(models, self._pool(source, models[0]))
            await asyncio.to_thread(give_back)
            log.info("counting tokens with the tokenizer %s (%s)", name, names_shown(models))
            return
        for reason in reasons:
            log.warning("no tokenizer of our own for %s: %s", names_shown(models), reason)
        log.warning(
            "its prompts are counted by the replica's /tokenize, or by a learned ratio of bytes. Give --tokenizer DIR|NAME."
        )

    def _pool(self, source: LoadedTokenizer | None, model: str | None) -> TokenizerPool:
        limits = self._policy.limits
        return TokenizerPool(
            source,
            backlog_max=limits.tokenizer_backlog_max,
            backlog_bytes_max=limits.tokenizer_backlog_bytes_max,
            remote=RemoteCounter(self._upstream, lambda: self._ask(model), self._clock),
            ratio=RatioCounter(),
        )
