"""``deploy/compose.yaml`` and ``deploy/Dockerfile`` without an engine: what they say, and the same commands as processes."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.observability.shipped import DEPLOY

COMPOSE, DOCKERFILE = DEPLOY / "compose.yaml", DEPLOY / "Dockerfile"
INSTALLED_AT = "/opt/kvgate"


def services() -> dict[str, dict[str, Any]]:
    """Return the services, anchors resolved."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"]
    return found


def mounted(service: Mapping[str, Any]) -> dict[str, Path]:
    """Return what a service sees of this repository: its path there, and here."""
    parts = [volume.split(":") for volume in service.get("volumes", ())]
    return {part[1]: (DEPLOY / part[0]).resolve() for part in parts if part[0].startswith(".")}


@dataclass(frozen=True, slots=True)
class Places:
    """Where the services are on this machine: ``NAME:PORT`` within compose, and the port here."""

    ports: Mapping[str, int]

    def here(self, text: str) -> str:
        """Return it with every service's address replaced by this machine's."""
        return re.sub(r"\b[a-z]+:\d+\b", lambda match: self._of(match[0]), text)

    def _of(self, address: str) -> str:
        return f"127.0.0.1:{self.ports[address]}" if address in self.ports else address


def command_of(name: str, places: Places) -> list[str]:
    """Return a service's command with this machine's addresses and paths."""
    service = services()[name]
    words = [places.here(str(word)) for word in service["command"]]
    for there, here in mounted(service).items():
        words = [word.replace(there, str(here)) for word in words]
    return ["127.0.0.1" if word == "0.0.0.0" else word for word in words]  # noqa: S104


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a Dockerfile."""

    stage: int
    name: str
    text: str

    def words(self) -> list[str]:
        """Return what it is given: a JSON list, or as a shell would split it."""
        found: list[str] = json.loads(self.text) if self.text.startswith("[") else shlex.split(self.text)
        return found


def instructions() -> Iterator[Instruction]:
    """Yield the instructions; stages count from 0."""
    lines = [line for line in DOCKERFILE.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    stage = -1
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        name, _, text = line.partition(" ")
        stage += name == "FROM"
        yield Instruction(stage, name, text)


def build(root: Path, source: Path, target: Path) -> None:
    """Do what the first stage does: copy from ``root`` into ``source`` and run its commands there, installing into ``target``."""
    for step in instructions():
        if step.stage == 0 and step.name == "COPY":
            *files, into = step.words()
            for file in files:
                _copy(root / file, source / into / file if into.endswith("/") else source / into)
        elif step.stage == 0 and step.name == "RUN":
            command = step.text.replace(INSTALLED_AT, str(target))
            command = re.sub(r"^python\b", sys.executable, command)
            done = subprocess.run(["/bin/sh", "-ec", command], cwd=source, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def _copy(found: Path, into: Path) -> None:
    if found.is_dir():
        shutil.copytree(found, into, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(found, into)
