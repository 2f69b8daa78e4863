"""``kvgate mock-vllm`` as a process of its own."""

import asyncio
import json
import socket
import sys

from tests.integration.mock_harness import RunningMock


async def start(*words: str) -> asyncio.subprocess.Process:
    command = (sys.executable, "-m", "proxy", "mock-vllm", *words)
    return await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)


async def test_it_says_where_it_listens_and_cuts_open_streams_when_told_to_stop() -> None:
    process = await start("--port", "0", "--model", "m")
    assert process.stderr is not None
    async with asyncio.timeout(30):
        said = (await process.stderr.readline()).decode().strip()
        assert said.startswith("mock vLLM 0.32 serves 'm' on http://127.0.0.1:")
        mock = RunningMock(None, int(said.rpartition(":")[2]))  # type: ignore[arg-type]
        body = json.dumps({"prompt": "x", "max_tokens": 5000, "ignore_eos": True, "stream": True}).encode()
        reader, writer = await mock.open("POST", "/v1/completions", body, {"content-type": "application/json"})
        await reader.readuntil(b"data: ")
        process.terminate()
        rest = await reader.read()
        assert b"[DONE]" not in rest
        writer.close()
        await process.wait()
        assert await process.stderr.read() == b""


async def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = await start("--port", str(taken.getsockname()[1]))
        async with asyncio.timeout(30):
            _, said = await process.communicate()
    assert process.returncode == 1
    assert b"choose another --port" in said
