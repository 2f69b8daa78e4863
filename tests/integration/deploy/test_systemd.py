"""The unit: well-formed, confined, and true to the program that it runs."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from proxy.config.settings import VARIABLES
from proxy.core.policy_relay import Relay

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "deploy" / "systemd" / "kvgate.service"
EXPOSURE_MAX = 20  # tenths: systemd calls up to 2.0 safe


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze."""
    assert shutil.which("systemd-analyze"), "systemd-analyze is missing: install the package systemd"
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """Return the unit with a program that is there, as a machine has it that followed the README."""
    program = tmp_path / "kvgate"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / "kvgate.service"
    copy.write_text(UNIT.read_text().replace("/opt/kvgate/bin/kvgate", str(program)))
    return copy


def test_systemd_finds_nothing_wrong(unit: Path) -> None:
    done = analyze("verify", "--man=no", str(unit))
    said = [line for line in (done.stdout + done.stderr).splitlines() if unit.name in line]
    assert (done.returncode, said) == (0, [])


def test_a_misspelt_key_would_be_found(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("TimeoutStopSec", "TimeoutStopSecs"))
    done = analyze("verify", "--man=no", str(unit))
    assert "TimeoutStopSecs" in done.stdout + done.stderr


def test_the_service_is_confined(unit: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(unit))
    assert done.returncode == 0, done.stdout


def test_what_runs_has_the_time_to_end() -> None:
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert int(seconds) >= Relay().drain_accept_s + Relay().grace_s + 2


def test_every_variable_is_kvgates() -> None:
    named = set(re.findall(r"\bKVGATE_\w+", UNIT.read_text() + (UNIT.parent / "README.md").read_text()))
    assert {"KVGATE_POLICY", "KVGATE_ADMIN_TOKEN_FILE"} <= named
    assert named <= set(VARIABLES.values())
