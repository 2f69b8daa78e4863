"""Count prompts as the engine will, off the event loop, and never wait for it without bound.

Rungs, best first: the model's own tokenizer in a small thread pool (exact; not for media, not for templates the client brings along,
which only the engine may trust) → the replica's ``/tokenize`` → learned bytes per token with a safety factor. A rung is left when it
cannot do the call, when it fails, or when its backlog is full; the last one always answers. ``PromptCount.source`` says which it was.

A text longer than ``context × longest token`` characters is refused before it is tokenized, by the engine's own rule (§4.6).
"""

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from proxy.adapters.block_hashes import HashMemory, hash_salt
from proxy.adapters.local_counter import LocalCounter, LocalCountError, has_only_ids, pack_prompts
from proxy.adapters.ratio_counter import RatioCounter
from proxy.adapters.remote_counter import RemoteCounter, RemoteCountError
from proxy.adapters.segment_cache import ID_BYTES
from proxy.adapters.tokenizer_files import LoadedTokenizer
from proxy.core.demand import CountSource, PromptPart
from proxy.ports import PromptCount, PromptTooLongError, TokenizerStats
from proxy.wire.call import Call, CallKind

THREADS = 2
BACKLOG_MAX = 256
BACKLOG_BYTES_MAX = 64 << 20
# Up to this size counting on the loop costs less than handing it to a thread and back; where words are known, up to six times of it.
INLINE_BYTES_MAX = 512
INLINE_BYTES_MAX_FAST = 16 * 1024  # with fastokens: 0.2 ms, half of which is the template


@dataclass(frozen=True, slots=True)
class _Frame:
    """What a count is measured against: blocks, context, and the length a prompt is cut to (None: not cut)."""

    block_size: int
    context_tokens_max: int | None
    kept_tokens_max: int | None


class TokenizerPool:
    """The TokenCounter port. One per model whose tokenizer is known; without one it starts at ``/tokenize``."""

    def __init__(
        self,
        source: LoadedTokenizer | None,
        *,
        threads: int = THREADS,
        backlog_max: int = BACKLOG_MAX,
        backlog_bytes_max: int = BACKLOG_BYTES_MAX,
        remote: RemoteCounter | None,
        ratio: RatioCounter,
    ) -> None:
        """``backlog_max`` calls and ``backlog_bytes_max`` prompt bytes may wait for or be in the threads; more go to the next rung."""
        self._local = None if source is None else LocalCounter(source)
        self._inline_bytes_max = INLINE_BYTES_MAX_FAST if source is not None and source.encoder.fast else INLINE_BYTES_MAX
        self.bound(backlog_max=backlog_max, backlog_bytes_max=backlog_bytes_max)
        self._remote = remote
        self._ratio = ratio
        self._hashes = HashMemory()
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="tokenizer")
        self._lock = threading.Lock()
        self.counted_by_source: dict[CountSource, int] = dict.fromkeys(CountSource, 0)
        self.compared = 0
        self.mismatches = 0
        self.mismatch_tokens_abs_sum = 0
        self.backlog = 0
        self.backlog_bytes = 0
        self.backlog_overflows = 0
        self.last_error: str | None = None

    def bound(self, *, backlog_max: int, backlog_bytes_max: int) -> None:
        """Let so much wait from now on; what waits already does."""
        self._backlog_max = backlog_max
        self._backlog_bytes_max = backlog_bytes_max

    async def count(self, call: Call, *, block_size: int, context_tokens_max: int | None) -> PromptCount:
        """Count every prompt of ``call``, by the best rung that can. Raises PromptTooLongError."""
        frame = _Frame(block_size, context_tokens_max, _kept_tokens_max(call, context_tokens_max))
        result = await self._count_here(call, frame)
        if result is None:
            result = await self._count_there(call, frame)
        if result is None:
            parts = self._ratio.estimate(call, _least(frame.kept_tokens_max, context_tokens_max))
            result = PromptCount(parts, CountSource.RATIO)
        self.counted_by_source[result.source] += 1
        return result

    def expect(self, call: Call, bound_tokens_max: int) -> PromptCount | None:
        """The length that so many bytes have had, where the bound they set is known and within ``bound_tokens_max``."""
        bound = None if self._local is None else self._local.bound_tokens(call)
        if bound is None or bound > bound_tokens_max:
            return None
        tokens = self._ratio.expected(call)
        if tokens is None:
            return None
        self.counted_by_source[CountSource.BOUND] += 1
        tokens = min(tokens, bound)
        return PromptCount((PromptPart(tokens),), CountSource.BOUND, bound - tokens)

    def learn(self, call: Call, count: PromptCount, prompt_tokens: int) -> None:
        """Compare with the engine's usage over all prompts, and teach the ratio."""
        if prompt_tokens < 1:
            return
        if count.source in {CountSource.EXACT, CountSource.REMOTE}:
            off = abs(sum(part.tokens for part in count.parts) - prompt_tokens)
            self.compared += 1
            self.mismatches += off > 0
            self.mismatch_tokens_abs_sum += off
        self._ratio.learn(call, prompt_tokens)

    def stats(self) -> TokenizerStats:
        """A snapshot for metrics."""
        return TokenizerStats(
            counted_by_source=dict(self.counted_by_source),
            compared=self.compared,
            mismatches=self.mismatches,
            mismatch_tokens_abs_sum=self.mismatch_tokens_abs_sum,
            backlog=self.backlog,
            backlog_bytes=self.backlog_bytes,
            backlog_overflows=self.backlog_overflows,
            cache_bytes=0 if self._local is None else self._local.cache_bytes,
            last_error=self.last_error,
        )

    async def aclose(self) -> None:
        """Drop what waits and let what runs finish in its thread."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _count_here(self, call: Call, frame: _Frame) -> PromptCount | None:
        if not self._can_count(call):
            return None
        size = _work_bytes(call)
        try:
            if size * (1.0 if self._local is None else self._local.cost_ratio) <= self._inline_bytes_max:
                return self._count_now(call, frame)
            work = self._submit(call, frame, size)
            if work is not None:
                return await asyncio.wrap_future(work)
        except LocalCountError as error:
            self.last_error = str(error)
        return None

    def _can_count(self, call: Call) -> bool:
        return has_only_ids(call) or (self._local is not None and self._local.can_count(call))

    def _submit(self, call: Call, frame: _Frame, size: int) -> "Future[PromptCount] | None":
        with self._lock:
            if self.backlog >= self._backlog_max or self.backlog_bytes + size > self._backlog_bytes_max:
                self.backlog_overflows += 1
                return None
            self.backlog += 1
            self.backlog_bytes += size
        work = self._executor.submit(self._count_now, call, frame)
        # fires when the work ends or is cancelled before it began, not when the waiting client goes away
        work.add_done_callback(lambda _: self._release(size))
        return work

    def _release(self, size: int) -> None:
        with self._lock:
            self.backlog -= 1
            self.backlog_bytes -= size

    def _count_now(self, call: Call, frame: _Frame) -> PromptCount:
        """The own rung, in a thread or inline. Raises LocalCountError, PromptTooLongError."""
        if self._local is None or has_only_ids(call):
            texts = pack_prompts(call)
        else:
            untruncated = call.truncate_prompt_tokens is None
            texts = self._local.encode(call, frame.context_tokens_max if untruncated else None)
        return PromptCount(_parts(call, texts, frame, self._hashes), CountSource.EXACT)

    async def _count_there(self, call: Call, frame: _Frame) -> PromptCount | None:
        if self._remote is None or call.prompt_embeds:
            return None
        try:
            texts = await self._remote.count(call)
        except RemoteCountError as error:
            self.last_error = str(error)
            return None
        return PromptCount(_parts(call, texts, frame, self._hashes), CountSource.REMOTE)


def _parts(call: Call, texts: list[bytes], frame: _Frame, memory: HashMemory) -> tuple[PromptPart, ...]:
    # placeholder ids say nothing of what is in an image, so media prompts share nothing
    hashed = call.shares_prefix and not call.media
    salt = hash_salt(call.model, call.cache_salt)
    parts: list[PromptPart] = []
    for ids in texts:
        tokens = len(ids) // ID_BYTES
        if frame.kept_tokens_max is not None and tokens > frame.kept_tokens_max:
            parts.append(PromptPart(max(1, frame.kept_tokens_max)))  # which end is cut off is not known here
            continue
        if frame.context_tokens_max is not None and tokens > frame.context_tokens_max:
            raise PromptTooLongError(tokens, exact=True)
        parts.append(PromptPart(max(1, tokens), memory.hashes(ids, frame.block_size, salt) if hashed else ()))
    return tuple(parts)


def _kept_tokens_max(call: Call, context_tokens_max: int | None) -> int | None:
    """Length the engine truncates to. −1 is the context, less one where an output limit was given (completions have a default)."""
    if call.truncate_prompt_tokens is None or call.truncate_prompt_tokens >= 0 or context_tokens_max is None:
        return call.truncate_prompt_tokens if call.truncate_prompt_tokens != -1 else None
    generates = not call.kind.prefill_only
    has_limit = call.kind is CallKind.COMPLETIONS or (generates and call.output_tokens_max is not None)
    return context_tokens_max - 1 if has_limit else context_tokens_max


def _work_bytes(call: Call) -> int:
    return call.prompt_bytes + ID_BYTES * sum(len(prompt) for prompt in call.prompts if isinstance(prompt, tuple))


def _least(first: int | None, second: int | None) -> int | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)
