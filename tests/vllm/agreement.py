"""Run by vLLM's own Python: its benchmark's client and ours before one server that writes down when it wrote what.

The server answers completions as vLLM does, a first token after ``TTFT_S`` and then one each ``TPOT_S``, and tells what it really did,
which on a busy machine is later. So what each client measured is held against the truth of its own requests. Prints one JSON object.
"""

import asyncio
import json
import sys
from typing import Any

import aiohttp
from vllm.benchmarks.lib.endpoint_request_func import RequestFuncInput, async_request_openai_completions

from proxy.adapters.clock import SystemClock
from proxy.adapters.upstream import HttpUpstream
from proxy.bench.load import LoadRequest, send

CLIENTS = 6
TTFT_S, TPOT_S, TOKENS = 0.2, 0.02, 60
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
Times = dict[str, list[float]]


def chunk(payload: bytes) -> bytes:
    """One event as one piece of a chunked body."""
    data = b"data: " + payload + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(**fields: Any) -> bytes:
    """One event as vLLM writes it."""
    return chunk(json.dumps({"id": "x", **fields}, separators=(",", ":")).encode())


class TrueServer:
    """``true`` are TTFT and TPOT as written, by whose request it was."""

    def __init__(self) -> None:
        self.true: dict[str, Times] = {name: {"ttft": [], "tpot": []} for name in ("vllm", "kvgate")}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                asked_s = asyncio.get_running_loop().time()
                length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length"))
                await reader.readexactly(length)
                await self._answer(writer, "kvgate" if "kvgate" in head else "vllm", asked_s)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, who: str, asked_s: float) -> None:
        now_s = asyncio.get_running_loop().time
        writer.write(HEAD)
        written_s = []
        for number in range(TOKENS):
            await asyncio.sleep(max(0.0, asked_s + TTFT_S + number * TPOT_S - now_s()))
            written_s.append(now_s())
            writer.write(event(choices=[{"index": 0, "text": " a", "finish_reason": "length" if number + 1 == TOKENS else None}]))
        writer.write(event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": TOKENS}) + chunk(b"[DONE]") + b"0\r\n\r\n")
        self.true[who]["ttft"].append(written_s[0] - asked_s)
        self.true[who]["tpot"].append((written_s[-1] - written_s[0]) / (TOKENS - 1))


async def by_vllm(session: aiohttp.ClientSession, url: str, found: dict[str, list[float]]) -> None:
    """Send one with vLLM's client."""
    asked = RequestFuncInput(
        prompt="a", api_url=f"{url}/v1/completions", prompt_len=3, output_len=TOKENS, model="tiny", model_name="tiny"
    )
    answer = await async_request_openai_completions(asked, session)
    assert answer.success, answer.error
    found["ttft"].append(answer.ttft)
    found["tpot"].append((answer.latency - answer.ttft) / (answer.output_tokens - 1))
    found["tokens"].append(answer.output_tokens)
    found["gaps"].append(len(answer.itl))


async def by_kvgate(upstream: HttpUpstream, url: str, found: dict[str, list[float]]) -> None:
    """Send one with ours."""
    body = json.dumps({"model": "tiny", "prompt": "a", "stream": True}).encode()
    sample = await send(upstream, url, LoadRequest(body, b"/v1/completions"), SystemClock())
    assert sample.outcome == "completed", sample
    assert sample.ttft_s is not None
    assert sample.tpot_s is not None
    found["ttft"].append(sample.ttft_s)
    found["tpot"].append(sample.tpot_s)
    found["tokens"].append(sample.output_tokens)
    found["gaps"].append(sum(sample.itl_counts.values()))


async def main(requests: int) -> None:
    """Send so many with each, mixed, ``CLIENTS`` at a time."""
    truth = TrueServer()
    server = await asyncio.start_server(truth.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    found: dict[str, dict[str, list[float]]] = {
        name: {"ttft": [], "tpot": [], "tokens": [], "gaps": []} for name in ("vllm", "kvgate")
    }
    upstream = HttpUpstream()
    left = iter(range(2 * requests))
    async with aiohttp.ClientSession() as session:

        async def client() -> None:
            for number in left:
                await (by_vllm(session, url, found["vllm"]) if number % 2 else by_kvgate(upstream, url, found["kvgate"]))

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
    await upstream.aclose()
    server.close()
    sys.stdout.write(json.dumps({"true": truth.true, "measured": found}) + "\n")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
