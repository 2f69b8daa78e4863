"""The moves of ``deploy/MOVING.md``, and past kvgate: by the real kubectl each patch does what it should, and its way back undoes it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.guides import ROOT, Block, blocks, lines_of, words
from tests.integration.deploy.kubernetes import CHART, Manifest, container, manifests, of_kind, run, template

pytestmark = pytest.mark.deploy

MOVING = ROOT / "deploy" / "MOVING.md"
FOLDER = ROOT / "deploy" / "kubernetes" / "moving"
PATCHES = [block for block in blocks(MOVING) if block.patched]
MOVES = {forth.patched.stem: (forth, back) for forth, back in zip(PATCHES[::2], PATCHES[1::2], strict=True) if forth.patched}


def target_of(block: Block) -> Manifest:
    """Return the object that a block patches."""
    assert block.patched is not None
    _, _, kind, name, *_ = command_of(block)
    kinds = {"service": "Service", "httproute": "HTTPRoute"}
    return of_kind(manifests(block.patched.read_text()), kinds[kind], name)


def command_of(block: Block) -> list[str]:
    """Return the words of its only command."""
    (line,) = lines_of(block.text)
    return words(line)


def patched(block: Block, target: Manifest, folder: Path) -> dict[str, Any]:
    """Return the object after the block's command, without a cluster."""
    path = folder / "object.yaml"
    path.write_text(yaml.safe_dump(target))
    _, _, _, _, *rest = command_of(block)
    done = run("bin/kubectl", "patch", "--local", "-f", str(path), *rest, "-o", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_there_are_three_moves_by_patch() -> None:
    assert set(MOVES) == {"before", "llm-d-route", "production-stack-router"}


@pytest.mark.parametrize("move", ["before", "production-stack-router"])
def test_a_service_comes_to_lead_to_kvgate_and_back(move: str, tmp_path: Path) -> None:
    forth, back = MOVES[move]
    was = target_of(forth)
    chart = manifests(template())
    moved = patched(forth, was, tmp_path)
    assert moved["spec"]["selector"] == of_kind(chart, "Service", "kvgate")["spec"]["selector"]
    ports = {port["name"]: port["containerPort"] for port in container(of_kind(chart, "Deployment", "kvgate"))["ports"]}
    assert moved["spec"]["ports"][0]["targetPort"] == ports["api"]
    assert moved["spec"]["ports"][0]["port"] == was["spec"]["ports"][0]["port"]  # nobody changes an address
    again = patched(back, moved, tmp_path)
    assert again["spec"]["selector"] == was["spec"]["selector"]
    old = was["spec"]["ports"][0]
    assert again["spec"]["ports"][0]["targetPort"] == old.get("targetPort", old["port"])


def test_a_route_comes_to_lead_to_kvgate_and_back(tmp_path: Path) -> None:
    forth, back = MOVES["llm-d-route"]
    was = target_of(forth)
    moved = patched(forth, was, tmp_path)
    (backend,) = moved["spec"]["rules"][0]["backendRefs"]
    (port,) = of_kind(manifests(template()), "Service", backend["name"])["spec"]["ports"]
    assert backend["port"] == port["port"]
    assert patched(back, moved, tmp_path)["spec"] == was["spec"]


def test_the_values_for_a_move_begin_by_watching_the_pods_that_serve_today() -> None:
    done = run("bin/helm", "template", "kvgate", str(CHART), "-f", str(FOLDER / "values.yaml"))
    assert done.returncode == 0, done.stderr
    policy = yaml.safe_load(of_kind(manifests(done.stdout), "ConfigMap", "kvgate-policy")["data"]["policy.yaml"])
    assert policy["mode"] == "observe"
    wanted = policy["discovery"]["kubernetes"]
    service = of_kind(manifests((FOLDER / "vllm-pods.yaml").read_text()), "Service", wanted["service"])
    assert service["spec"]["clusterIP"] == "None"
    assert wanted["port"] in [port["name"] for port in service["spec"]["ports"]]
    before = of_kind(manifests((FOLDER.parent / "vllm" / "before.yaml").read_text()), "Deployment", "vllm")
    assert service["spec"]["selector"].items() <= before["spec"]["template"]["metadata"]["labels"].items()


def test_kvgates_own_service_comes_to_lead_to_vllm(tmp_path: Path) -> None:
    (block,) = [block for block in blocks(ROOT / "deploy" / "kubernetes" / "README.md") if block.patched]
    was = target_of(block)
    moved = patched(block, was, tmp_path)
    pods = of_kind(manifests((FOLDER.parent / "vllm" / "after.yaml").read_text()), "Deployment", "vllm")
    assert moved["spec"]["selector"].items() <= pods["spec"]["template"]["metadata"]["labels"].items()
    assert moved["spec"]["ports"][0]["targetPort"] in [port["name"] for port in container(pods)["ports"]]
    assert moved["spec"]["ports"] == was["spec"]["ports"]
