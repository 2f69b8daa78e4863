"""A prompt of 100,000 tokens beside open streams: what it holds up, and how long its own decision takes (Linux, two cores).

    python -m tests.bench.long_prompt [--tokens 100000] [--rounds 10] [--tokenizer DIR] [--json FILE]

``STREAMS`` streams of 50 events a second run through kvgate; each event carries the time at which the engine wrote it, so that a *stall* is
the longest that any event took from there to its client. Beside them go, one at a time, conversations that nobody has seen, and then each
one's second turn; the pool is so small that both are counted exactly. *Added* is the time from the first byte sent to the first byte of the
answer, less what the same body takes straight to the engine: the time to read, count and decide, and to send it on.

kvgate has core 0, engine and clients core 1. The figures mean something on a machine that does nothing else; the quiet row, streams alone,
tells what it adds by itself.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from proxy.bench.processes import free_ports
from proxy.sim.mock_text import TOKENIZER_DIRECTORY
from tests.bench.relay_load import EVENT, LAST, METRICS, MODELS, Client, Engine, Seen, percentile_ms, whole
from tests.bench.shared_processes import Child

STREAMS, PERIOD_MS = 40, 20
BLOCKS, CONTEXT_TOKENS = 40_001, 262_144
QUIET_S, PAUSE_S = 5.0, 0.5
CREATED = b'"created":1764400000'
TIMED = b'"created":'  # nanoseconds of the monotonic clock, which all processes share
VOCABULARY = tuple(
    f"{first}{second}" for first in ("re", "con", "sta", "mel", "vor", "tin") for second in ("der", "ble", "ning", "port")
)


class TimedEngine(Engine):
    """Every event tells when it was written; the context is long."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        models = MODELS.replace(b'"max_model_len":8192', b'"max_model_len":%d' % CONTEXT_TOKENS)
        self._get = {b"/v1/models": whole(models), b"/metrics": whole(METRICS % blocks, b"text/plain; version=0.0.4")}
        self._pieces: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        """The transport's side; a long body is joined once."""
        self._pieces.append(data)
        if len(self._pieces) > 1 and not data.endswith(b"}"):
            return
        whole_so_far, self._pieces = b"".join(self._pieces), []
        super().data_received(whole_so_far)

    def _emit(self) -> None:
        if self._transport.is_closing():
            return
        event = EVENT.replace(CREATED, b"%b%d" % (TIMED, time.monotonic_ns()))
        self._left -= 1
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event) + (b"" if self._left else LAST))
        if self._left:
            self._due_s += self._period_s
            self._loop.call_at(self._due_s, self._emit)


def run_timed_engine(listener: socket.socket) -> None:
    """Serve until killed, on core 1."""
    os.sched_setaffinity(0, {1})

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: TimedEngine(BLOCKS), sock=listener)
        await server.serve_forever()

    uvloop.run(main())


class TimedClient(Client):
    """One stream after another; notes how long each event took."""

    late_s: list[float] = []  # noqa: RUF012 - of all clients together

    def data_received(self, data: bytes) -> None:
        """The transport's side."""
        now_ns = time.monotonic_ns()
        for piece in data.split(TIMED)[1:]:
            digits = piece.partition(b",")[0]
            if digits.isdigit():
                self.late_s.append((now_ns - int(digits)) / 1e9)
        super().data_received(data)


def conversation(tokens: int, tokens_per_word: float, seed: int) -> list[dict[str, str]]:
    """One that nobody has seen, of about so many tokens."""
    rng = random.Random(seed)
    words = round(tokens / tokens_per_word)
    return [
        {"role": "system", "content": f"You answer in short. {seed}"},
        {"role": "user", "content": " ".join(rng.choices(VOCABULARY, k=words))},
    ]


def second_turn(first: list[dict[str, str]], seed: int) -> list[dict[str, str]]:
    """The same, with an answer and a further question."""
    rng = random.Random(seed)
    answer, question = (" ".join(rng.choices(VOCABULARY, k=count)) for count in (150, 40))
    return [*first, {"role": "assistant", "content": answer}, {"role": "user", "content": question}]


async def first_byte_s(port: int, messages: list[dict[str, str]]) -> float:
    """Seconds from the first byte sent to the first of the answer's head. Raises RuntimeError of another status than 200."""
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": 16}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        began_s = time.perf_counter()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            % len(body)
        )
        writer.write(body)
        head = await reader.readline()
        took_s = time.perf_counter() - began_s
    finally:
        writer.close()
    if b" 200 " not in head:
        raise RuntimeError(head.decode())
    return took_s


async def measure(kvgate: int, engine: int, tokens: int, rounds: int, tokens_per_word: float) -> dict[str, Any]:
    """All rows; milliseconds."""
    loop, seen, chance = asyncio.get_running_loop(), Seen(), random.Random(1)
    await first_byte_s(kvgate, conversation(1000, tokens_per_word, 0))
    links = [
        await loop.create_connection(lambda: TimedClient(PERIOD_MS, seen, None, chance), "127.0.0.1", kvgate)
        for _ in range(STREAMS)
    ]
    late = TimedClient.late_s
    await asyncio.sleep(QUIET_S)
    quiet = []
    for _ in range(rounds):
        late.clear()
        await asyncio.sleep(PAUSE_S)
        quiet.append(max(late))
    rows: dict[str, Any] = {"quiet": {"stall_p50_ms": percentile_ms(quiet, 0.5), "stall_max_ms": percentile_ms(quiet, 1.0)}}
    chats = [conversation(tokens, tokens_per_word, seed) for seed in range(1, rounds + 1)]
    turns = [second_turn(chat, seed) for seed, chat in enumerate(chats)]
    for name, asked in (("first turn", chats), ("second turn", turns)):
        stalls, added = [], []
        for messages in asked:
            straight_s = await first_byte_s(engine, messages)
            late.clear()
            added.append(await first_byte_s(kvgate, messages) - straight_s)
            await asyncio.sleep(PAUSE_S)
            stalls.append(max(late))
        rows[name] = {
            "stall_p50_ms": percentile_ms(stalls, 0.5), "stall_max_ms": percentile_ms(stalls, 1.0),
            "added_p50_ms": percentile_ms(added, 0.5), "added_max_ms": percentile_ms(added, 1.0),
        }  # fmt: skip
    seen.over = True
    for transport, _ in links:
        transport.abort()
    rows["failed"] = seen.failed + seen.lost
    return rows


async def run(folder: Path, tokens: int, rounds: int, tokenizer: Path) -> dict[str, Any]:
    """Start engine and kvgate, and measure."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    engine_port = listener.getsockname()[1]
    engine = multiprocessing.get_context("fork").Process(target=run_timed_engine, args=(listener,), daemon=True)
    engine.start()
    port, admin_port = free_ports(2)
    command = [
        *([taskset, "-c", "0"] if (taskset := shutil.which("taskset")) else []),
        sys.executable, "-m", "proxy", "serve", "--replica", f"http://127.0.0.1:{engine_port}", "--tokenizer", str(tokenizer),
        "--port", str(port), "--admin-port", str(admin_port), "--log-level", "warning",
    ]  # fmt: skip
    kvgate = Child("kvgate", command, folder)
    os.sched_setaffinity(0, {1})
    try:
        kvgate.start()
        await kvgate.until(f"http://127.0.0.1:{admin_port}/ready")
        await asyncio.sleep(QUIET_S)  # the tokenizer is proved
        return await measure(port, engine_port, tokens, rounds, tokens_per_word(tokenizer))
    finally:
        kvgate.kill()
        engine.kill()
        engine.join()
        listener.close()


def tokens_per_word(tokenizer: Path) -> float:
    """Of ``VOCABULARY``, by the tokenizer that counts."""
    from tokenizers import Tokenizer  # loaded after the engine was forked

    words = random.Random(0).choices(VOCABULARY, k=2000)
    return len(Tokenizer.from_file(str(tokenizer / "tokenizer.json")).encode(" ".join(words)).ids) / len(words)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000, help="of a conversation (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="conversations (default: %(default)s)")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER_DIRECTORY, metavar="DIR", help="with a tokenizer.json")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the figures go there too")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        rows = uvloop.run(run(Path(folder), options.tokens, options.rounds, options.tokenizer))
    sys.stdout.write(
        f"{options.tokens:,} tokens, {STREAMS} streams of {1000 // PERIOD_MS} events/s, load {os.getloadavg()[0]:.1f}\n"
    )
    for name, row in rows.items():
        sys.stdout.write(f"{name}: {row}\n")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 1 if rows["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
