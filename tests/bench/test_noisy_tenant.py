"""The noisy tenant's bench: what it sends, and its time."""

import asyncio

import pytest

from tests.bench.noisy_arms import LEAD_S, LOUD, Options, arrivals
from tests.support.virtual_loop import run_virtually

OPTIONS = Options(pairs=1, seconds=10.0, tenants=5, per_s=1.5)


def test_the_others_send_the_same_and_the_loud_one_ten_times_as_much_after_the_lead() -> None:
    quiet, loud = (arrivals(OPTIONS, 1, loud=loud) for loud in (False, True))
    assert [one for one in quiet if one[1] != LOUD] == [one for one in loud if one[1] != LOUD]
    of_loud = [due_s for due_s, tenant, _ in loud if tenant == LOUD]
    assert sum(due_s < LEAD_S for due_s in of_loud) == 15
    assert sum(due_s >= LEAD_S for due_s in of_loud) == 150


def test_an_hour_of_virtual_time_passes_at_once_and_bytes_still_travel() -> None:
    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(3600.0)
        slept_s = loop.time()

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"x")
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            assert await reader.read() == b"x"
            writer.close()
            await writer.wait_closed()
        return slept_s, loop.time() - slept_s

    slept_s, took_s = run_virtually(main())
    assert slept_s == pytest.approx(3600.0, abs=0.01)
    assert took_s < 1.0
