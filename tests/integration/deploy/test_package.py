"""What is released: it installs without a network from its files, holds what it needs, and loads an extra only when it is asked for."""

import json
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from proxy import __version__

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[3]
EXTRAS = "redis,otel,kubernetes"
LAZY = ("redis", "opentelemetry", "dns", "zmq", "transformers", "matplotlib")


def succeed(*command: str | Path, s_max: float = 600) -> str:
    """Run a command and return what it printed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=s_max, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of what ``deploy/package.sh`` made."""
    folder = tmp_path_factory.mktemp("dist")
    succeed(ROOT / "deploy" / "package.sh", folder)
    return folder


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the ``bin`` of an environment that was given the wheel and its wheelhouse, and no network."""
    folder = tmp_path_factory.mktemp("offline")
    (wheel,) = dist.glob("*.whl")
    wanted = f"{wheel}[{EXTRAS}]"
    succeed(sys.executable, "-m", "pip", "download", "-q", "-c", ROOT / "constraints.txt", "-d", folder / "wheels", wanted)
    venv.create(folder / "env", with_pip=True)
    pip = (folder / "env" / "bin" / "python", "-m", "pip")
    succeed(*pip, "install", "-q", "--no-index", "--find-links", folder / "wheels", f"kvgate[{EXTRAS}]=={__version__}")
    return folder / "env" / "bin"


def test_the_command_is_there_and_tells_its_version(installed: Path) -> None:
    assert __version__ in succeed(installed / "kvgate", "--version")


def test_the_files_it_reads_are_inside(installed: Path, tmp_path: Path) -> None:
    assert json.loads(succeed(installed / "kvgate", "check", "--schema"))["properties"]["mode"]
    policy = tmp_path / "policy.yaml"
    policy.write_text("mode: observe\n")
    succeed(installed / "kvgate", "check", "--strict", policy)
    played = succeed(installed / "kvgate", "simulate", "--requests", "30", "--baseline", "passthrough", "--json")
    assert json.loads(played)["policies"]["kvgate"]["offered"] == 30


def test_extras_and_what_is_slow_to_import_stay_out_until_they_are_asked_for(installed: Path) -> None:
    program = f"import sys, proxy.cli, proxy.app; print([name for name in {LAZY!r} if name in sys.modules])"
    assert succeed(installed / "python", "-c", program).strip() == "[]"


def test_the_bill_of_materials_names_what_is_inside(dist: Path) -> None:
    (path,) = dist.glob("*.cdx.json")
    bill = json.loads(path.read_text())
    assert bill["metadata"]["component"]["name"] == "kvgate"
    components = {canonical(component["name"]): component["version"] for component in bill["components"]}
    assert {"starlette", "uvicorn", "redis"} <= components.keys()
    pins = (line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pinned = {canonical(name): version for name, version in pins}
    assert {name: version for name, version in components.items() if pinned.get(name, version) != version} == {}


def canonical(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
