"""What a guide's reader has: an engine, kvgate before it with policy and admin token, a shell. All on free ports of this machine."""

import asyncio
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from proxy.bench.processes import Program, Programs, free_ports, until_ready
from proxy.sim.mock_text import TOKENIZER_DIRECTORY
from tests.bench.load import new_upstream
from tests.guides import ROOT, Block

TOKEN = "a-token-of-this-stage"
PATIENCE_S = 600.0  # of a whole block: a hang, not a slow machine


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the guide's addresses and folders are here, and what to run its commands with."""

    places: Mapping[str, str]
    folder: Path
    kvgate: Program
    shell: Mapping[str, str]

    def here(self, text: str) -> str:
        """Return a command with this machine's addresses and folders; longer names first, since some begin alike."""
        names = sorted(self.places, key=len, reverse=True)
        return re.sub("|".join(map(re.escape, names)), lambda match: self.places[match[0]], text)

    async def run(self, block: Block) -> str:
        """Run a block as one script that stops at its first failure; return what it said."""
        process = await asyncio.create_subprocess_exec(
            "bash", "-euo", "pipefail", "-c", self.here(block.text),
            cwd=self.folder, env=dict(self.shell), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE_S):
            said, _ = await process.communicate()
        assert process.returncode == 0, f"{self.here(block.text)}\n{said.decode()}"
        return said.decode()


# Commands that go to port 8081 unless told otherwise are told otherwise.
PROGRAM = """#!/bin/sh
case "$1 $*" in
    mode*|report*) set -- "$@" --admin {admin} ;;
    *http*) ;;
    snapshot*|top*) set -- "$@" {admin} ;;
esac
exec "{python}" -m proxy "$@"
"""


def shell_of(folder: Path, admin: str) -> dict[str, str]:
    """Return a shell's variables: ``kvgate`` on the path, and none of ours."""
    program = folder / "bin" / "kvgate"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(admin=admin, python=sys.executable))
    program.chmod(0o755)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}
    return plain | {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    """Build it in a folder of its own."""
    assert shutil.which("curl"), "curl is missing: install the package curl"
    engine, clients, admin = free_ports(3)
    etc = folder / "etc"
    etc.mkdir()
    (etc / "policy.yaml").write_text(f"mode: enforce\nreplicas:\n  - http://127.0.0.1:{engine}\n")
    (etc / "admin-token").write_text(TOKEN + "\n")
    upstream = new_upstream()
    async with Programs() as programs:
        await programs.start("mock-vllm", ["mock-vllm", "--port", str(engine)])
        ports = ["--host", "127.0.0.1", "--port", str(clients), "--admin-port", str(admin)]
        files = ["--policy", str(etc / "policy.yaml"), "--admin-token-file", str(etc / "admin-token")]
        kvgate = await programs.start("kvgate", ["serve", *ports, *files, "--tokenizer", str(TOKENIZER_DIRECTORY)])
        await until_ready(kvgate, upstream, f"http://127.0.0.1:{clients}", s_max=180.0)
        yield Stage(
            {
                "127.0.0.1:8000": f"127.0.0.1:{engine}",
                "127.0.0.1:8080": f"127.0.0.1:{clients}",
                "127.0.0.1:8081": f"127.0.0.1:{admin}",
                "/etc/kvgate": str(etc),
            },
            folder,
            kvgate,
            shell_of(folder, f"http://127.0.0.1:{admin}"),
        )
    await upstream.aclose()
