"""One generation request of the mock: into the engines, tokens out, gone when its client is.

Both forms watch for the client: a disconnect aborts the engine requests at once, streaming or not.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from weakref import WeakSet

from proxy.sim.engine_requests import EngineRequest, chain_hashes
from proxy.sim.mock_answers import AnswerWriter, Choice
from proxy.sim.mock_engine import EngineLoop, TokenSink
from proxy.sim.mock_errors import bad_request, queue_full, token_backlog_full
from proxy.sim.mock_requests import Generation
from proxy.sim.mock_settings import MockSettings
from proxy.sim.mock_text import MockVoice
from proxy.sim.mock_wire import Receive, Send, start


class EnginePool:
    """The engines of one server, and the limits of its front door."""

    def __init__(self, settings: MockSettings, voice: MockVoice) -> None:
        self.engines = [EngineLoop(settings.engine, settings.step_time) for _ in range(settings.data_parallel_size)]
        self.rejections = {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}
        self._settings = settings
        self._voice = voice
        self._next = 0
        self._added = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._sinks: WeakSet[TokenSink] = WeakSet()

    def ensure_running(self) -> None:
        """Start the engine loops on the running event loop, once."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(engine.run(), name="mock engine") for engine in self.engines]
        for task in self._tasks:
            if task.done():
                task.result()  # an engine that died fails every request, loudly

    async def stop(self) -> None:
        """End the engine loops."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    @property
    def paused(self) -> bool:
        """Whether the engines stand still."""
        return not all(engine.going.is_set() for engine in self.engines)

    def go_on(self, *, going: bool) -> None:
        """Let every engine stop after its step, or step on."""
        for engine in self.engines:
            if going:
                engine.going.set()
            else:
                engine.going.clear()

    def open_sink(self) -> TokenSink:
        """Where one HTTP request's tokens will go."""
        sink = TokenSink()
        self._sinks.add(sink)
        return sink

    def hang_up(self) -> None:
        """Let every open request end as if its client had left."""
        for sink in list(self._sinks):
            sink.hang_up()

    def check_limits(self, requests: int) -> None:
        """Raises ApiError 503 when a queue limit is reached."""
        limit = self._settings.max_num_queued_reqs
        if limit is not None and sum(engine.unfinished for engine in self.engines) + requests > limit:
            self.rejections["max_num_queued_reqs"] += 1
            raise queue_full()
        limit = self._settings.max_num_queued_tokens
        if limit is not None and sum(engine.prompt_tokens_unfinished() for engine in self.engines) >= limit:
            self.rejections["max_num_queued_tokens"] += 1
            raise token_backlog_full()

    def submit(self, request: Generation, choices: list[Choice], sink: TokenSink, rank: int | None) -> Callable[[], None]:
        """Queue every choice; returns what aborts the unfinished ones. Raises ApiError for a rank that is not there."""
        if rank is not None and not 0 <= rank < len(self.engines):
            raise bad_request(f"data_parallel_rank {rank} is out of range [0, {len(self.engines)}).")
        placed: list[tuple[EngineLoop, str]] = []
        for choice in choices:
            engine = self.engines[self._next if rank is None else rank]
            self._next = (self._next + 1) % len(self.engines)
            self._added += 1
            request_id = f"{choice.index}_{request.request_id}-{self._added}"
            engine.add(self._engine_request(request_id, request, choice), sink, choice.index)
            placed.append((engine, request_id))

        def abort() -> None:
            for engine, request_id in placed:
                engine.abort((request_id,))

        return abort

    def _engine_request(self, request_id: str, request: Generation, choice: Choice) -> EngineRequest:
        block_size = self._settings.engine.block_size
        prompt = choice.prompt
        names = list(chain_hashes(prompt, block_size, request.salt))
        voice = self._voice

        def hash_block(index: int) -> int:
            # Asked for in order, from the first block that generated tokens fill.
            parent = names[index - 1] if index else request.salt
            first = index * block_size
            tokens = [
                prompt[at] if at < len(prompt) else voice.token_id(choice.entry, at - len(prompt))
                for at in range(first, first + block_size)
            ]
            names.extend(chain_hashes(tokens, block_size, parent))
            return names[index]

        return EngineRequest(
            request_id=request_id,
            prompt_tokens=len(prompt),
            output_tokens=choice.natural_tokens,
            output_tokens_max=request.limits[choice.index // request.n],
            block_hashes=tuple(names),
            priority=request.priority,
            arrival=float(self._added),
            shares_prefix=request.shares_prefix,
            hash_block=hash_block,
        )


@asynccontextmanager
async def watching(receive: Receive, sink: TokenSink) -> AsyncIterator[None]:
    """Hang up the sink as soon as the client leaves."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        sink.hang_up()

    task = asyncio.create_task(watch(), name="mock disconnect watch")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def stream_answer(
    send: Send, writer: AnswerWriter, choices: list[Choice], sink: TokenSink, voice: MockVoice, interval: int
) -> None:
    """Send chunks as tokens come. Returns early when the client has left."""
    await start(send, 200, b"text/event-stream; charset=utf-8")
    opened = False
    held: list[tuple[str, int]] = [("", 0)] * len(choices)
    unfinished = len(choices)
    while unfinished:
        events = await sink.take()
        if not events:
            return
        parts = []
        if not opened:
            parts.append(writer.opening())
            opened = True
        for index, reason in events:
            choice = choices[index]
            text, tokens = held[index]
            text += choice.advance(voice, reason)
            tokens += 1
            if reason is not None:
                unfinished -= 1
            # The first token always goes out; later ones wait for a full interval.
            if reason is None and tokens < interval and choice.tokens > 1:
                held[index] = (text, tokens)
                continue
            held[index] = ("", 0)
            parts.append(writer.chunk(choice, text, tokens))
        if parts:
            await send({"type": "http.response.body", "body": b"".join(parts), "more_body": True})
    await send({"type": "http.response.body", "body": writer.closing(choices)})


async def collect_answer(choices: list[Choice], sink: TokenSink, voice: MockVoice) -> list[str] | None:
    """Texts of all choices once every one has ended; None when the client has left."""
    texts: list[list[str]] = [[] for _ in choices]
    unfinished = len(choices)
    while unfinished:
        events = await sink.take()
        if not events:
            return None
        for index, reason in events:
            texts[index].append(choices[index].advance(voice, reason))
            unfinished -= reason is not None
    return ["".join(pieces) for pieces in texts]
