"""The ten minutes of ``deploy/systemd/README.md``, typed word for word: from nothing to observe, to enforce, and back."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from proxy.bench.processes import Programs, free_ports
from proxy.sim.mock_text import TOKENIZER_DIRECTORY
from tests.guides import Block, marked
from tests.integration.deploy.conftest import ROOT
from tests.integration.deploy.systemd_stage import UNITS

pytestmark = pytest.mark.deploy

GUIDE = ROOT / "deploy" / "systemd" / "README.md"
SUDO = '#!/bin/sh\nexec "$@"\n'
SYSTEMCTL = '#!/bin/sh\nexec "{python}" "{program}" "$@"\n'
PATIENCE_S = 1200.0  # a hang, not a slow machine: the first block installs


class Machine:
    """Folders in the place of ``/opt`` and ``/etc``, ports in the place of the guide's, and a shell."""

    def __init__(self, root: Path, wheels: Path, ports: list[int]) -> None:
        first, second, clients, admin = ports
        self.engines, self.metrics = (first, second), f"http://127.0.0.1:{admin}/metrics"
        self.root = root
        self._places = {
            "/opt/kvgate": f"{root}/opt/kvgate",
            "/etc/kvgate": f"{root}/etc/kvgate",
            "/etc/systemd/system": f"{root}/{UNITS}",
            "10.0.0.1:8000": f"127.0.0.1:{first}",
            "10.0.0.2:8000": f"127.0.0.1:{second}",
            "127.0.0.1:8080": f"127.0.0.1:{clients}",
            "127.0.0.1:8081": f"127.0.0.1:{admin}",
        }
        programs = {
            "sudo": SUDO,
            "systemctl": SYSTEMCTL.format(python=sys.executable, program=Path(__file__).with_name("systemd_stage.py")),
        }
        for name, text in programs.items():
            program = root / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(text)
            program.chmod(0o755)
        (root / UNITS).mkdir(parents=True)
        (root / "opt").mkdir()
        plain = {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}
        ours = {"KVGATE_PORT": str(clients), "KVGATE_ADMIN_PORT": str(admin), "KVGATE_HOST": "127.0.0.1"}
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
        path = f"{root / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        tokenizer = {"KVGATE_TOKENIZER": str(TOKENIZER_DIRECTORY)}
        self._shell = plain | ours | offline | tokenizer | {"PATH": path, "STAGE_ROOT": str(root)}

    def here(self, text: str) -> str:
        """Return a text with this machine's places."""
        names = sorted(self._places, key=len, reverse=True)
        return re.sub("|".join(map(re.escape, names)), lambda match: self._places[match[0]], text)

    def type(self, block: Block) -> str:
        """Type a block; return what it said."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.here(block.text)],
            cwd=ROOT, env=self._shell, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        journal = self.root / "journal"
        assert done.returncode == 0, done.stdout + done.stderr + (journal.read_text() if journal.exists() else "")
        return done.stdout


@pytest.fixture
def machine(wheels: Path, tmp_path: Path) -> Iterator[Machine]:
    yield Machine(tmp_path, wheels, free_ports(4))
    pid = tmp_path / "pid"
    if pid.exists():  # the guide was not typed to its end
        os.kill(int(pid.read_text()), 9)


async def until_mode(mode: str, metrics: str) -> None:
    """Wait until it rules: a saved policy is taken up within a second."""
    async with asyncio.timeout(180.0), httpx.AsyncClient() as http:
        while f'kvgate_mode{{mode="{mode}"}} 1' not in (await http.get(metrics)).text:  # noqa: ASYNC110 - another process has no event for it
            await asyncio.sleep(0.1)


async def test_from_nothing_to_observe_to_enforce_and_back(machine: Machine) -> None:
    install, look, enforce, back = marked(GUIDE, "run")
    async with Programs() as programs:
        for engine in machine.engines:
            await programs.start("mock-vllm", ["mock-vllm", "--port", str(engine)])
        await asyncio.to_thread(machine.type, install)
        seen = await asyncio.to_thread(machine.type, look)
        assert '"mock"' in seen
        assert "observe" in seen
        await until_mode("observe", machine.metrics)
        await asyncio.to_thread(machine.type, enforce)
        await until_mode("enforce", machine.metrics)
        await asyncio.to_thread(machine.type, back)
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient() as http:
                await http.get(machine.metrics)
    secret = machine.root / "etc" / "kvgate" / "admin-token"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert "Traceback" not in (machine.root / "journal").read_text()
