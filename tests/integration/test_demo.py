"""``kvgate demo`` end to end, through real processes, and that it leaves none behind."""

import asyncio
import json
import re
import signal
import socket
import sys

import pytest

from proxy.adapters.upstream import HttpUpstream
from proxy.bench.processes import ProgramError, Programs, free_ports, until_ready
from tests.support.processes import alive, children_of

RUN_KEYS = {
    "completed", "failed", "shed", "preemptions", "tokens_per_s", "ttft_s_p50", "ttft_s_p99", "tpot_ms_p99", "elapsed_s",
}  # fmt: skip
LISTENS = re.compile(r"on http://127\.0\.0\.1:(\d+)")


def hear_interrupts() -> None:
    """Whoever runs the tests in a shell's background has them ignore SIGINT, and so would the child."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


async def demo(*words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy", "demo", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        preexec_fn=hear_interrupts,
    )  # fmt: skip


@pytest.mark.slow
async def test_a_small_demo_completes_everything_and_prints_one_object() -> None:
    # This seed's answers are all short: the longest takes two and a half seconds.
    process = await demo("--requests", "8", "--clients", "6", "--kv-blocks", "256", "--seed", "131", "--json")
    async with asyncio.timeout(120):
        out, told = await process.communicate()
    assert process.returncode == 0, told.decode()
    result = json.loads(out)
    assert set(result) == {"direct", "kvgate"}
    for run in result.values():
        assert set(run) == RUN_KEYS
        assert (run["completed"], run["failed"], run["shed"]) == (8, 0, 0), told.decode()
        assert run["elapsed_s"] > 0
        assert run["ttft_s_p50"] <= run["ttft_s_p99"] <= run["elapsed_s"]
        assert run["tokens_per_s"] > 0
    # The same work: output lengths depend on the prompts alone.
    tokens = [run["tokens_per_s"] * run["elapsed_s"] for run in result.values()]
    assert tokens[0] == pytest.approx(tokens[1], rel=0.001)
    assert "with kvgate     8/8 completed" in told.decode()
    assert "drain" not in told.decode()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_whoever_stops_it_finds_no_process_left(number: signal.Signals, code: int) -> None:
    process = await demo()
    assert process.stderr is not None
    async with asyncio.timeout(60):
        async for line in process.stderr:
            if b"running" in line:
                break
        started = children_of(process.pid)
        assert len(started) == 2
        process.send_signal(number)
        out, told = await process.communicate()
    assert process.returncode == code
    assert out == b""
    assert b"every process it started is ended" in told
    assert alive(started) == set()


async def test_a_program_that_does_not_start_is_told_with_its_last_lines() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        async with Programs() as programs, asyncio.timeout(60):
            program = await programs.start("mock replica 1", ["mock-vllm", "--port", port])
            with pytest.raises(ProgramError) as caught:
                await program.says(LISTENS)
    said = str(caught.value)
    assert said.startswith("mock replica 1 did not start (exit code 1). Its last lines:\n    kvgate mock-vllm: cannot listen on")
    assert "choose another --port" in said


async def test_what_kvgate_warns_of_is_kept() -> None:
    (unused,) = free_ports(1)
    words = ["serve", "--replica", f"http://127.0.0.1:{unused}", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0"]
    async with Programs() as programs, asyncio.timeout(60):
        program = await programs.start("kvgate", words)
        await program.says(re.compile(r"\bWARNING\b"))
        said = programs.complaints()
    assert str(unused) in said[0]
    assert said[0].startswith("kvgate: ")


async def test_a_program_that_never_gets_ready_ends_the_wait_when_it_ends() -> None:
    (admin_port,) = free_ports(1)
    upstream = HttpUpstream()
    async with Programs() as programs, asyncio.timeout(60):
        program = await programs.start("kvgate", ["serve", "--replica", "no address"])
        with pytest.raises(ProgramError, match=r"kvgate ended before its work was done \(exit code 2\)"):
            await programs.unless_one_ends(until_ready(program, upstream, f"http://127.0.0.1:{admin_port}"))
    await upstream.aclose()


async def test_a_program_that_dies_stops_the_work() -> None:
    async with Programs() as programs, asyncio.timeout(60):
        program = await programs.start("mock replica 1", ["mock-vllm", "--port", "0"])
        await program.says(LISTENS)
        dropped = asyncio.Event()

        async def work() -> None:
            program._process.kill()
            try:
                await asyncio.Event().wait()
            finally:
                dropped.set()

        with pytest.raises(ProgramError, match="mock replica 1 ended before its work was done \\(killed by signal 9\\)"):
            await programs.unless_one_ends(work())
        assert dropped.is_set()


async def test_a_wrong_flag_is_one_line() -> None:
    process = await demo("--kv-blocks", "3")
    async with asyncio.timeout(60):
        _, told = await process.communicate()
    assert process.returncode == 2
    assert told.decode().count("\n") == 1
    assert "whole number from 64" in told.decode()
