"""The chart and the manifests: valid for the real schemas, in step with each other, and true to the program that they run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from proxy.config.settings import VARIABLES
from proxy.core.policy_relay import Relay
from tests.integration.deploy.kubernetes import (
    CHART,
    EVERYTHING,
    FOLDER,
    PLAIN,
    ROOT,
    Manifest,
    container,
    manifests,
    of_kind,
    run,
    template,
)

pytestmark = pytest.mark.deploy

KUBERNETES = ("1.29", "1.34", "1.37")
OPERATORS = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}  # of the Prometheus operator and of KEDA, not of Kubernetes
VALUES = {
    "default": (),
    "everything, hpa": (*EVERYTHING, "autoscaling.kind=hpa"),
    "everything, keda": (*EVERYTHING, "autoscaling.kind=keda"),
    "own redis": ("redis.enabled=false", "redis.urlSecret.name=shared"),
    "one proxy": ("redis.enabled=false", "replicas=1", "networkPolicy.enabled=false"),
}


def strictly_valid(path: Path, version: str) -> None:
    """Fail unless every manifest of Kubernetes' own has its schema's keys and no others."""
    done = run("venv/bin/kubernetes-validate", "--strict", "--no-warn", "-k", version, str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    validated = len(re.findall("^INFO .* passed for", done.stdout + done.stderr, re.MULTILINE))
    assert validated == len([document for document in manifests(path.read_text()) if document["kind"] not in OPERATORS])


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_chart_is_valid(values: tuple[str, ...], version: str, tmp_path: Path) -> None:
    rendered = tmp_path / "rendered.yaml"
    rendered.write_text(template(*values))
    strictly_valid(rendered, version)


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    done = run("bin/helm", "lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def test_a_wrong_key_would_be_found(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(template().replace("failureThreshold:", "failuresThreshold:"))
    with pytest.raises(AssertionError):
        strictly_valid(wrong, KUBERNETES[1])


@pytest.mark.parametrize("name", ["before.yaml", "after.yaml"])
def test_vllms_manifests_are_valid(name: str) -> None:
    strictly_valid(FOLDER / "vllm" / name, KUBERNETES[1])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("redis.enabled=false",), "replicas above 1 need"),
        (("redis.urlSecret.name=shared",), "exclude each other"),
        (("autoscaling.kind=vpa",), "got vpa; allowed none, keda, hpa"),
    ],
)
def test_values_that_cannot_work_are_refused_with_the_reason(values: tuple[str, ...], said: str) -> None:
    done = run("bin/helm", "template", "kvgate", str(CHART), *(word for value in values for word in ("--set", value)))
    assert done.returncode != 0
    assert said in done.stderr


def test_the_plain_manifests_are_the_chart() -> None:
    assert (PLAIN / "kvgate.yaml").read_text() == template(), "make render-kubernetes brings them into step"


def test_kustomize_takes_the_plain_manifests() -> None:
    done = run("bin/kubectl", "kustomize", str(PLAIN))
    assert done.returncode == 0, done.stderr
    key = lambda document: (document["kind"], document["metadata"]["name"])  # noqa: E731
    assert sorted(manifests(done.stdout), key=key) == sorted(manifests(template()), key=key)


def test_two_releases_in_a_namespace_share_no_name() -> None:
    names = [{(one["kind"], one["metadata"]["name"]) for one in manifests(template(release=name))} for name in ("a", "b")]
    assert not names[0] & names[1]


@pytest.fixture(scope="module")
def everything() -> list[Manifest]:
    return manifests(template(*EVERYTHING, "autoscaling.kind=keda"))


def test_every_service_finds_its_pods_and_their_port(everything: list[Manifest]) -> None:
    pods = [
        one["spec"]["template"]
        for one in [*everything, *manifests((FOLDER / "vllm" / "after.yaml").read_text())]
        if one["kind"] == "Deployment"
    ]
    for service in (one for one in everything if one["kind"] == "Service"):
        selector = service["spec"]["selector"].items()
        (chosen,) = [pod for pod in pods if selector <= pod["metadata"]["labels"].items()]
        ports = {port["name"] for one in chosen["spec"]["containers"] for port in one["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports, service["metadata"]["name"]


def test_the_bypass_leads_past_kvgate(everything: list[Manifest]) -> None:
    vllm = of_kind(manifests((FOLDER / "vllm" / "after.yaml").read_text()), "Deployment", "vllm")
    ways = {name: of_kind(everything, "Service", name)["spec"] for name in ("kvgate", "kvgate-bypass")}
    assert ways["kvgate-bypass"]["selector"].items() <= vllm["spec"]["template"]["metadata"]["labels"].items()
    assert not ways["kvgate"]["selector"].items() <= vllm["spec"]["template"]["metadata"]["labels"].items()
    assert ways["kvgate"]["ports"] == ways["kvgate-bypass"]["ports"]


def test_the_policy_is_good_and_finds_vllms_service(everything: list[Manifest], tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(of_kind(everything, "ConfigMap", "kvgate-policy")["data"]["policy.yaml"])
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "check", "--strict", str(policy)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    wanted = yaml.safe_load(policy.read_text())["discovery"]["kubernetes"]
    service = of_kind(manifests((FOLDER / "vllm" / "after.yaml").read_text()), "Service", wanted["service"])
    assert wanted["port"] in [port["name"] for port in service["spec"]["ports"]]


def test_the_container_runs_what_kvgate_understands(everything: list[Manifest]) -> None:
    kvgate = container(of_kind(everything, "Deployment", "kvgate"))
    told = {variable["name"]: variable.get("value") for variable in kvgate["env"]}
    assert told.keys() - {"VLLM_API_KEY"} <= set(VARIABLES.values())
    ports = {port["name"]: str(port["containerPort"]) for port in kvgate["ports"]}
    assert (ports["api"], ports["admin"]) == (told["KVGATE_PORT"], told["KVGATE_ADMIN_PORT"])
    assert kvgate["args"] == ["serve"]


def test_a_pod_is_given_the_time_that_kvgate_takes_to_end(everything: list[Manifest]) -> None:
    grace_s = of_kind(everything, "Deployment", "kvgate")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s >= Relay().drain_accept_s + Relay().grace_s + 2


def test_a_policy_is_mounted_as_a_folder_that_the_kubelet_refreshes(everything: list[Manifest]) -> None:
    kvgate = container(of_kind(everything, "Deployment", "kvgate"))
    (mount,) = [mount for mount in kvgate["volumeMounts"] if mount["name"] == "policy"]
    assert "subPath" not in mount
    (policy,) = [variable["value"] for variable in kvgate["env"] if variable["name"] == "KVGATE_POLICY"]
    assert str(Path(policy).parent) == mount["mountPath"]


def test_every_metric_that_is_named_is_exported() -> None:
    documented = set(re.findall(r"`(kvgate_\w+)", (ROOT / "deploy" / "README.md").read_text()))
    named = set(
        re.findall(r"\bkvgate_[a-z_]+", template(*EVERYTHING[:3], "autoscaling.kind=hpa") + template("autoscaling.kind=keda"))
    )
    assert "kvgate_pool_replicas_wanted" in named
    assert named <= documented


def test_the_operators_get_the_shipped_rules_and_dashboards(everything: list[Manifest]) -> None:
    rules = [one["spec"] for one in everything if one["kind"] == "PrometheusRule"]
    assert rules == [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "deploy" / "prometheus").glob("*.rules.yml"))]
    boards = {
        name: text
        for one in everything
        if one["metadata"]["name"].startswith("kvgate-dashboard")
        for name, text in one["data"].items()
    }
    assert boards == {path.name: path.read_text() for path in (ROOT / "deploy" / "grafana" / "dashboards").glob("*.json")}
    monitor = of_kind(everything, "ServiceMonitor", "kvgate")["spec"]
    (watched,) = [
        one
        for one in everything
        if one["kind"] == "Service" and monitor["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items()
    ]
    assert [port["name"] for port in watched["spec"]["ports"]] == [endpoint["port"] for endpoint in monitor["endpoints"]]
    assert watched["metadata"]["labels"][monitor["jobLabel"]] == "kvgate"


@pytest.mark.parametrize(("kind", "sample"), [("ScaledObject", "keda"), ("HorizontalPodAutoscaler", "hpa")])
def test_the_chart_scales_as_the_sample_does(kind: str, sample: str) -> None:
    (chart,) = [
        one["spec"]
        for one in manifests(template(f"autoscaling.kind={sample}", "autoscaling.pool=my-model"))
        if one["kind"] == kind
    ]
    (shipped,) = [
        one["spec"] for one in manifests((ROOT / "deploy" / "autoscaling" / f"{sample}.yaml").read_text()) if one["kind"] == kind
    ]
    if kind == "ScaledObject":
        assert chart["advanced"] == shipped["advanced"]
        assert [chart["triggers"][0]["metadata"][key] for key in ("query", "threshold")] == [
            shipped["triggers"][0]["metadata"][key] for key in ("query", "threshold")
        ]
    else:
        assert chart["behavior"] == shipped["behavior"]
        (ours,), (theirs,) = chart["metrics"], shipped["metrics"]
        assert ours["external"]["metric"] == theirs["external"]["metric"]
        assert (ours["external"]["target"]["averageValue"], theirs["external"]["target"]["averageValue"]) == ("0.8", "800m")
