"""Memory that was freed goes back to the system, where the C library has a word for it."""

import asyncio
import gc
from pathlib import Path

import pytest

from proxy.adapters import freed_memory

SIZE_BYTES = 4_000  # small pieces: large ones go back by themselves
COUNT = 25_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_what_was_freed_is_given_back() -> None:
    pieces = [bytes(SIZE_BYTES) for _ in range(COUNT)]
    last = bytes(SIZE_BYTES)  # lies above them, so that the heap's end cannot simply be lowered
    full = resident_bytes()
    del pieces
    freed_memory.give_back()
    assert resident_bytes() < full - SIZE_BYTES * COUNT // 2
    assert last


def test_a_c_library_without_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "TRIM", "no_such_function_here")
    freed_memory.give_back()


async def test_all_is_collected_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    async def sleep(seconds: float) -> None:
        done.append(f"slept {seconds:g}")
        if len(done) > 4:
            raise asyncio.CancelledError

    monkeypatch.setattr(gc, "collect", lambda: done.append("collected"))
    with pytest.raises(asyncio.CancelledError):
        await freed_memory.collect_regularly(sleep)
    assert done == ["slept 300", "collected", "slept 300", "collected", "slept 300"]
