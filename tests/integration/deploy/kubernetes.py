"""What the chart and the plain manifests come to, by the real helm and kubectl."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
HOME = Path(os.environ.get("KVGATE_DEPLOY_HOME") or ROOT / ".kvgate" / "deploy")
FOLDER = ROOT / "deploy" / "kubernetes"
CHART = FOLDER / "chart"
PLAIN = FOLDER / "plain"
EVERYTHING = (  # each part that a value switches on
    "adminToken.secretName=admin",
    "replicaKey.secretName=key",
    "monitoring.serviceMonitor=true",
    "monitoring.prometheusRule=true",
    "monitoring.dashboards=true",
    "nodeSelector.pool=cpu",
)

Manifest = dict[str, Any]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run one of the programs of ``setup.sh``. Fails where it was not run."""
    if not (HOME / ".installed").exists():
        pytest.fail(f"no helm and kubectl in {HOME}: run make test-deploy")
    return subprocess.run([str(HOME / command[0]), *command[1:]], capture_output=True, text=True, timeout=120, check=False)


def template(*values: str, release: str = "kvgate") -> str:
    """Return the chart under these values (``key=value``)."""
    done = run("bin/helm", "template", release, str(CHART), *(word for value in values for word in ("--set", value)))
    assert done.returncode == 0, done.stderr
    return done.stdout


def manifests(text: str) -> list[Manifest]:
    """Return the documents of a YAML stream."""
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(documents: list[Manifest], kind: str, name: str) -> Manifest:
    """Return the one of this kind and name."""
    (found,) = [document for document in documents if (document["kind"], document["metadata"]["name"]) == (kind, name)]
    return found


def container(deployment: Manifest) -> Manifest:
    """Return the only container of a Deployment's Pods."""
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)
