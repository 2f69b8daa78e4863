"""The processes of a chaos run: four mocks that say the same, a faulty wire to each, and kvgate before the wires."""

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path

from proxy.bench.processes import free_ports
from proxy.sim.mock_text import TOKENIZER_DIRECTORY
from tests.bench.chaos_network import Wire
from tests.bench.shared_processes import Child

REPLICAS = 4
POLICY = """\
relay: {{drain_accept: 0s, grace: 5s}}
replicas:
{replicas}
"""


@dataclass(slots=True)
class Stage:
    """The processes and the wires between them."""

    folder: Path
    speed: float
    mocks: list[Child] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    kvgate: Child | None = None
    url: str = ""
    admin: str = ""

    async def __aenter__(self) -> "Stage":
        try:
            await self._start()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _start(self) -> None:
        *self.ports, port, admin = free_ports(REPLICAS + 2)
        for index, mock_port in enumerate(self.ports):
            command = [
                sys.executable, "-m", "proxy", "mock-vllm", "--port", str(mock_port), "--num-gpu-blocks", "200", "--max-model-len", "2048",
                "--speed", str(self.speed), "--seed", "7",
            ]  # fmt: skip
            self.mocks.append(Child(f"mock{index}", command, self.folder))
            self.wires.append(Wire(mock_port))
        for mock, wire in zip(self.mocks, self.wires, strict=True):
            mock.start()
            await wire.open()
        await asyncio.gather(
            *(mock.until(f"http://127.0.0.1:{at}/health") for mock, at in zip(self.mocks, self.ports, strict=True))
        )
        policy = self.folder / "policy.yaml"
        lines = "\n".join(f"  - {{name: r{index}, url: 'http://127.0.0.1:{wire.port}'}}" for index, wire in enumerate(self.wires))
        policy.write_text(POLICY.format(replicas=lines), encoding="utf-8")
        command = [
            sys.executable, "-m", "proxy", "serve", "--policy", str(policy), "--tokenizer", str(TOKENIZER_DIRECTORY),
            "--port", str(port), "--admin-port", str(admin), "--log-level", "warning",
        ]  # fmt: skip
        self.kvgate, self.url, self.admin = (
            Child("kvgate", command, self.folder),
            f"http://127.0.0.1:{port}",
            f"http://127.0.0.1:{admin}",
        )
        self.kvgate.start()
        await self.kvgate.until(f"{self.admin}/ready")

    async def _end(self) -> None:
        for child in (*([self.kvgate] if self.kvgate is not None else ()), *self.mocks):
            if child.running and child.stopped:
                child.go_on()
            child.kill()
        for wire in self.wires:
            await wire.close()
