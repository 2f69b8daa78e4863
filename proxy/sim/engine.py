"""A vLLM engine's scheduler, step by step, without clock or model (reference: vLLM 0.32, V1 scheduler, one full-attention group).

A step feeds at most ``max_num_batched_tokens``. Running requests come first, in order of admission; one that finds no free block
preempts the last admitted (fcfs) or the least important (priority), which loses its blocks and recomputes later. Only a step that
preempted nobody then admits waiting requests, head first, no overtaking: the head enters when

    ceil(T / block_size) − hit + unheld(hit) + W ≤ free        W = int(watermark × blocks) if anything runs, else 0

for T all of its tokens (full-ISL gate) and again for the chunk of this step; only the chunk's blocks are taken and decode growth
is never reserved. That is why engines preempt, and what kvgate is there to prevent.

Deterministic: equal calls give equal reports. A decoded token costs about a microsecond whatever the lengths.
Fails: a head larger than the whole pool blocks the queue for ever, as in vLLM; the caller sees steps that schedule nothing.
Speculation, hybrid models, LoRA and multimodal inputs are not modelled.
"""

from proxy.sim.block_pool import BlockPool
from proxy.sim.engine_requests import (
    EngineCounters,
    EngineGauges,
    EngineRequest,
    EngineSettings,
    FinishReason,
    RunState,
    SchedulingPolicy,
    StepReport,
    waiting_queue,
)


class Engine:
    """One engine (one data-parallel rank). The caller adds, aborts and calls ``step`` while ``has_work``."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.counters = EngineCounters()
        self.gauges = EngineGauges()
        self._pool = BlockPool(settings.num_gpu_blocks)
        self._states: dict[str, RunState] = {}
        self._running: list[RunState] = []
        self._waiting = waiting_queue(settings.policy)
        self._added = 0
        self._kv_tokens = 0  # Σ computed over running
        self._stale = False  # an abort is not in the gauges yet

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything: requests, or one empty step to publish the last abort."""
        return bool(self._states) or self._stale

    def __contains__(self, request_id: str) -> bool:
        """Whether a request is running or waiting here."""
        return request_id in self._states

    @property
    def unfinished(self) -> int:
        """Requests running or waiting."""
        return len(self._states)

    @property
    def usable_blocks(self) -> int:
        """Blocks that can be handed out."""
        return self._pool.usable

    @property
    def used_blocks(self) -> int:
        """Blocks held now; the gauge shows it after the next step."""
        return self._pool.used

    def generated_tokens(self, request_id: str) -> int:
        """Tokens sampled so far for an unfinished request. Raises KeyError for others."""
        state = self._states[request_id]
        return state.length - state.request.prompt_tokens

    def held_blocks(self, request_id: str) -> int:
        """Blocks an unfinished request holds, shared ones included. Raises KeyError for others."""
        return len(self._states[request_id].blocks)

    def add(self, request: EngineRequest) -> None:
        """Put a request into the waiting queue. Raises ValueError when the API server would have refused it."""
        if request.request_id in self._states:
            raise ValueError(f"request id {request.request_id!r} is in use: ids must be unique among unfinished requests")
        if not 1 <= request.prompt_tokens < self.settings.max_model_len:
            raise ValueError(
                f"prompt of {request.prompt_tokens} tokens: must be 1 to max_model_len − 1 = {self.settings.max_model_len - 1}"
            )
        for name in ("output_tokens", "output_tokens_max"):
            value = getattr(request, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: must be at least 1, or None for no limit")
        state = RunState(request, self.settings, self._added)
        self._added += 1
        self._states[request.request_id] = state
        self._waiting.add(state)

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its blocks at once; False when it is not here (any more)."""
        state = self._states.pop(request_id, None)
        if state is None:
            return False
        if state.blocks:
            self._running.remove(state)
            self._release(state)
        else:
            self._waiting.remove(state)
        self.counters.finished[FinishReason.ABORT] += 1
        self._stale = True
        return True

    def step(self) -> StepReport:
        """Schedule, compute and finish one step."""
        settings = self.settings
        threshold = settings.long_prefill_token_threshold if len(self._states) > 1 else 0
        batch: list[RunState] = []
        preempted: list[str] = []
        admitted: list[str] = []
        budget = self._schedule_running(settings.max_num_batched_tokens, threshold, batch, preempted)
        if not preempted:
            self._admit(budget, threshold, batch, admitted)
        report = self._compute(batch, preempted, admitted)
        self._stale = False
        self.gauges = EngineGauges(report.running, report.waiting, report.used_blocks / self._pool.usable)
        return report

    def _schedule_running(self, budget: int, threshold: int, batch: list[RunState], preempted: list[str]) -> int:
        """Give every running request its tokens; returns the budget left."""
        running = self._running
        position_max = self.settings.max_model_len - 1
        block_size = self.settings.block_size
        index = 0
        while index < len(running) and budget > 0:
            state = running[index]
            chunk = state.length - state.computed
            if chunk > 1:
                chunk = min(chunk, threshold or chunk, budget, position_max - state.computed)
            target = state.computed + chunk
            if target > state.capacity:
                need = -(-(target - state.capacity) // block_size)
                index = self._make_room(need, index, batch, preempted)
                if index < 0:
                    break
                # A priority victim gave its tokens back; what is left is recounted, which happens only in steps that preempt.
                if preempted:
                    budget = self.settings.max_num_batched_tokens - sum(each.chunk for each in batch)
                self._extend(state, need)
            if target % block_size == 0 or chunk > 1:
                self._register_full(state, target)
            state.chunk = chunk
            batch.append(state)
            budget -= chunk
            index += 1
        return budget

    def _make_room(self, need: int, index: int, batch: list[RunState], preempted: list[str]) -> int:
        """Preempt until ``need`` blocks are free. Returns the index of the asking request, −1 when it was the victim itself."""
        running = self._running
        while need > self._pool.free:
            asking = running[index]
            if self.settings.policy is SchedulingPolicy.PRIORITY:
                at = max(range(len(running)), key=lambda i: (running[i].request.priority, running[i].request.arrival))
                # max() keeps the first of equals, as the scheduler's own does.
                victim = running.pop(at)
                if at < index:
                    index -= 1
                if victim in batch:
                    batch.remove(victim)
            else:
                victim = running.pop()
            self._preempt(victim)
            preempted.append(victim.request_id)
            if victim is asking:
                return -1
        return index

    def _preempt(self, state: RunState) -> None:
        state.computed_most = max(state.computed_most, state.computed)
        self._release(state)
        state.silent = True
        state.was_preempted = True
        state.preemptions_unexposed += 1
        self.counters.preemptions += 1
        self._waiting.put_back(state)

    def _release(self, state: RunState) -> None:
        self._pool.release(state.blocks)
        self._kv_tokens -= state.computed
        state.blocks = []
        state.capacity = 0
        state.computed = 0

    def _extend(self, state: RunState, need: int) -> None:
        state.blocks += self._pool.take(need)
        state.capacity += need * self.settings.block_size

    def _register_full(self, state: RunState, target: int) -> None:
        """Publish the blocks that this step fills, so that requests admitted in the same step already share them."""
        if not self.settings.prefix_caching:
            return
        block_size = self.settings.block_size
        for index in range(state.computed // block_size, min(target, state.length) // block_size):
            self._pool.register(state.blocks[index], state.hash_at(index))

    def _admit(self, budget: int, threshold: int, batch: list[RunState], admitted: list[str]) -> None:
        settings = self.settings
        pool = self._pool
        block_size = settings.block_size
        while budget > 0 and self._waiting and len(self._running) < settings.running_max:
            state = self._waiting.head()
            lookup = settings.prefix_caching and state.request.shares_prefix
            hit = pool.longest_hit(state.hashes, (state.length - 1) // block_size) if lookup else []
            hit_tokens = len(hit) * block_size
            chunk = min(state.length - hit_tokens, threshold or state.length)
            if chunk > budget:
                if not settings.chunked_prefill:
                    break
                chunk = budget
            watermark = int(settings.watermark * settings.num_gpu_blocks) if self._running else 0
            room = pool.free - pool.unheld(hit) - watermark
            target = hit_tokens + chunk
            need = -(-target // block_size) - len(hit)
            need_whole = -(-state.length // block_size) - len(hit) if settings.reserve_full_isl else need
            if max(need, need_whole) > room:
                break
            pool.share(hit)
            state.blocks = hit
            state.capacity = state.computed = hit_tokens
            self._kv_tokens += hit_tokens
            self._extend(state, need)
            self._register_full(state, target)
            self._count_lookup(state, hit_tokens, lookup)
            state.chunk = chunk
            budget -= chunk
            self._running.append(self._waiting.pop())
            batch.append(state)
            admitted.append(state.request_id)

    def _count_lookup(self, state: RunState, hit_tokens: int, lookup: bool) -> None:
        # Once per request, at its first admission: resumed requests are left out, as since vLLM #48860.
        if state.was_preempted:
            return
        state.cached_tokens = hit_tokens
        if lookup:
            self.counters.prefix_queries += state.length
            self.counters.prefix_hits += hit_tokens

    def _compute(self, batch: list[RunState], preempted: list[str], admitted: list[str]) -> StepReport:
        scheduled: dict[str, int] = {}
        sampled: list[str] = []
        ended: list[RunState] = []
        prefill_tokens = decode_sequences = fed_tokens = 0
        for state in batch:
            chunk = state.chunk
            scheduled[state.request_id] = chunk
            fed_tokens += chunk
            if state.silent:  # still prefilling, or recomputing after a preemption
                prefill_tokens += chunk
                if state.computed < state.computed_most:
                    self.counters.recomputed_tokens += min(chunk, state.computed_most - state.computed)
            else:
                decode_sequences += 1
            state.computed = computed = state.computed + chunk
            if computed == state.length:
                state.length = computed + 1
                sampled.append(state.request_id)
                if state.silent:
                    self._first_output(state)
                if computed + 1 >= state.end:
                    ended.append(state)
        kv_tokens = self._kv_tokens = self._kv_tokens + fed_tokens
        self.counters.generation_tokens += len(sampled)
        for state in ended:
            self._running.remove(state)
            self._release(state)
            del self._states[state.request_id]
            self.counters.finished[state.reason] += 1
        self.counters.steps += 1
        return StepReport(
            index=self.counters.steps - 1,
            scheduled=scheduled,
            preempted=preempted,
            admitted=admitted,
            sampled=sampled,
            finished=[(state.request_id, state.reason) for state in ended],
            prefill_tokens=prefill_tokens,
            decode_sequences=decode_sequences,
            kv_tokens=kv_tokens,
            used_blocks=self._pool.used,
            running=len(self._running),
            waiting=len(self._waiting),
        )

    def _first_output(self, state: RunState) -> None:
        """Count what the API server learns only with the first output after a start or a resume."""
        state.silent = False
        counters = self.counters
        if state.length == state.request.prompt_tokens + 1:
            counters.prompt_tokens += state.request.prompt_tokens
            counters.prompt_tokens_cached += state.cached_tokens
        counters.preemptions_exposed += state.preemptions_unexposed
        state.preemptions_unexposed = 0
