"""What is released: it installs without a network from its files, holds what it needs, and loads an extra only when it is asked for."""

import json
import os
import re
import subprocess
import venv
from pathlib import Path

import pytest

from proxy import __version__
from tests.integration.deploy.conftest import EXTRAS, ROOT, succeed, tagged

pytestmark = pytest.mark.deploy

LAZY = ("redis", "opentelemetry", "dns", "zmq", "transformers", "matplotlib")
PIPX = "pipx>=1.7,<2"


@pytest.fixture(scope="module")
def installed(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the ``bin`` of an environment that was given the wheel and its wheelhouse, and no network."""
    folder = tmp_path_factory.mktemp("offline")
    venv.create(folder / "env", with_pip=True)
    pip = (folder / "env" / "bin" / "python", "-m", "pip")
    succeed(*pip, "install", "-q", "--no-index", "--find-links", wheels, f"kvgate[{EXTRAS}]=={__version__}")
    return folder / "env" / "bin"


def test_a_commit_with_the_tag_of_another_version_is_refused(tmp_path: Path) -> None:
    source = tagged(tmp_path / "tagged", "v99.0.0")
    done = subprocess.run([source / "deploy" / "package.sh", tmp_path / "dist"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"the tag says v99.0.0, proxy/__init__.py says {__version__}" in done.stderr
    assert not list((tmp_path / "dist").iterdir())


def test_pipx_installs_it_without_a_network(wheels: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "pipx", with_pip=True)
    succeed(tmp_path / "pipx" / "bin" / "python", "-m", "pip", "install", "-q", PIPX)
    own = {"PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(tmp_path / "bin"), "PIPX_MAN_DIR": str(tmp_path / "man")}
    # It brings its own pip up to date first, so a wheel of that must be there too.
    succeed(tmp_path / "pipx" / "bin" / "python", "-m", "pip", "download", "-q", "-d", tmp_path / "pip", "pip")
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"{wheels} {tmp_path / 'pip'}", "PIPX_DEFAULT_BACKEND": "pip"}
    done = subprocess.run(
        [tmp_path / "pipx" / "bin" / "pipx", "install", f"kvgate[{EXTRAS}]"],
        capture_output=True, text=True, check=False, env={**os.environ, **own, **offline},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert __version__ in succeed(tmp_path / "bin" / "kvgate", "--version")


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
