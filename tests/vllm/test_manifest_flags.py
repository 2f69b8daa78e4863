"""The flags that the shipped manifests give to vLLM are vLLM's."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.vllm.conftest import HOME

pytestmark = pytest.mark.vllm

MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes" / "vllm"


@pytest.fixture(scope="module")
def known_flags() -> set[str]:
    done = subprocess.run(
        [str(HOME / "venv" / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", "--help=all"],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    return set(re.findall(r"--[a-z][a-z0-9-]+", done.stdout))


@pytest.mark.parametrize("name", ["before.yaml", "after.yaml"])
def test_every_flag_is_the_engines(name: str, known_flags: set[str]) -> None:
    (deployment,) = [one for one in yaml.safe_load_all((MANIFESTS / name).read_text()) if one["kind"] == "Deployment"]
    (vllm,) = deployment["spec"]["template"]["spec"]["containers"]
    given = {argument.partition("=")[0] for argument in vllm["args"]}
    assert given
    assert given <= known_flags
    assert "--no-such-flag" not in known_flags
