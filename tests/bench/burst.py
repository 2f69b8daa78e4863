"""When do streams that are asked for at once have their first token; here and, in turns, in another clone (Linux).

    python -m tests.bench.burst [--against DIR] [--bursts 30] [--streams 64]

Clients are connected, then all ask in one turn of their loop. Of each burst the middle and the last stream count, from sending to the first
byte of an event; told are the median and the least of all bursts, and kvgate's CPU for a stream, which is ended after its first event. The
engine answers at once (``streams_load``). Prompts are bound by their bytes, as 200 requests before have taught; a stream that is cut off
teaches nothing.
"""

import argparse
import asyncio
import multiprocessing
import os
import random
import socket
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import uvloop

from proxy.bench.processes import free_ports
from proxy.sim.mock_text import TOKENIZER_DIRECTORY
from tests.bench.relay_load import Seen
from tests.bench.shared_processes import Child
from tests.bench.soak_hour_look import read_process
from tests.bench.streams_load import HELD_MS, OneRequest, Opening, run_holding_engine, until

HERE = Path(__file__).resolve().parents[2]
WARM_REQUESTS, WARM_BURSTS = 200, 5
CONNECTED_S, ENDED_S = 0.05, 0.15  # for kvgate to have seen it


class AskingLater(OneRequest):
    """Connects, and asks when it is told to."""

    def _next(self) -> None:
        """Not by itself."""

    def ask(self) -> None:
        """Send the request."""
        self._send()


async def burst(port: int, streams: int) -> list[float]:
    """Milliseconds to the first token of each, in order."""
    loop, seen, chance = asyncio.get_running_loop(), Seen(), random.Random(1)
    links = [
        await loop.create_connection(lambda: AskingLater(HELD_MS, seen, None, chance), "127.0.0.1", port) for _ in range(streams)
    ]
    await asyncio.sleep(CONNECTED_S)
    for _, client in links:
        client.ask()
    await until(lambda: len(seen.first_s) >= streams, 0.001)
    seen.over = True
    for transport, _ in links:
        transport.abort()
    await asyncio.sleep(ENDED_S)
    return sorted(1e3 * one for one in seen.first_s)


async def run(folder: Path, clones: Sequence[Path], bursts: int, streams: int) -> list[str]:
    """A line for each clone."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    engine = f"http://127.0.0.1:{listener.getsockname()[1]}"
    process = multiprocessing.get_context("fork").Process(target=run_holding_engine, args=(listener,), daemon=True)
    process.start()
    started: list[tuple[Child, int]] = []
    found: list[list[tuple[float, float, float]]] = [[] for _ in clones]
    try:
        for number, clone in enumerate(clones):
            port, admin_port = free_ports(2)
            command = [  # -P: not what lies in this folder
                sys.executable, "-P", "-m", "proxy", "serve", "--replica", engine, "--tokenizer", str(TOKENIZER_DIRECTORY),
                "--port", str(port), "--admin-port", str(admin_port), "--log-level", "warning",
            ]  # fmt: skip
            kvgate = Child(f"kvgate-{number}", command, folder, {"PYTHONPATH": str(clone)})
            started.append((kvgate, port))
            kvgate.start()
            await kvgate.until(f"http://127.0.0.1:{admin_port}/ready")
            await Opening(port).probe(0, WARM_REQUESTS)
            for _ in range(WARM_BURSTS):
                await burst(port, streams)
        for _ in range(bursts):
            for (kvgate, port), rounds in zip(started, found, strict=True):
                spent_s = read_process(kvgate.pid).cpu_s
                took_ms = await burst(port, streams)
                spent_s = read_process(kvgate.pid).cpu_s - spent_s
                rounds.append((took_ms[streams // 2], took_ms[-1], 1e3 * spent_s / streams))
    finally:
        for kvgate, _ in started:
            kvgate.kill()
        process.kill()
        process.join()
        listener.close()
    lines = []
    for clone, rounds in zip(clones, found, strict=True):
        middle, last, cpu_ms = zip(*rounds, strict=True)
        lines.append(
            f"{clone}: middle {statistics.median(middle):.1f}, least {min(middle):.1f} ms; last {statistics.median(last):.1f}, "
            f"least {min(last):.1f} ms; CPU {statistics.mean(cpu_ms):.2f} ms a stream"
        )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="DIR", help="another clone, to be measured in turns with this one")
    parser.add_argument("--bursts", type=int, default=30, help="of each clone (default %(default)s)")
    parser.add_argument("--streams", type=int, default=64, help="of a burst (default %(default)s)")
    options = parser.parse_args(argv)
    clones = [HERE, *([options.against.resolve()] if options.against else [])]
    with tempfile.TemporaryDirectory() as folder:
        lines = uvloop.run(run(Path(folder), clones, options.bursts, options.streams))
    sys.stdout.write("\n".join([*lines, f"load {os.getloadavg()[0]:.1f}"]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
