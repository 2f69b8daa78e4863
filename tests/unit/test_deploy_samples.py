"""The samples of what stands in front agree with the policy's defaults: they wait longer, keep connections shorter, and ask once.

nginx, Envoy and LiteLLM are run with them as well (tests/integration/fronts); Istio's is only held to these values.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from proxy.core.policy import Policy

DEPLOY = Path(__file__).parents[2] / "deploy"
NGINX = (DEPLOY / "nginx" / "kvgate.conf").read_text("utf-8")
ENVOY = yaml.safe_load((DEPLOY / "envoy" / "envoy.yaml").read_text("utf-8"))
ISTIO = {part["kind"]: part["spec"] for part in yaml.safe_load_all((DEPLOY / "istio" / "kvgate.yaml").read_text("utf-8"))}
LITELLM = yaml.safe_load((DEPLOY / "litellm" / "config.yaml").read_text("utf-8"))

AUTOSCALING = "keda.yaml", "hpa.yaml", "prometheus-adapter.yaml"

ANSWER_S = 1800.0  # the longest generation that a front must sit through
KEEP_ALIVE_S = 75.0  # of kvgate's own connections (proxy.adapters.web_server)
NEVER_SENT = {"connect-failure", "refused-stream"}
POLICY = Policy()


def seconds(text: str) -> float:
    """Read a span of seconds; 0 is none, so without end."""
    value = float(str(text).removesuffix("s"))
    return value or float("inf")


def directive(name: str) -> str:
    """Return the one value of an nginx directive."""
    (value,) = re.findall(rf"^\s*{name} ([^;]+);", NGINX, re.MULTILINE)
    return str(value)


def envoy_parts() -> tuple[Any, Any, Any]:
    """Connection manager, route and cluster."""
    (listener,), (cluster,) = ENVOY["static_resources"]["listeners"], ENVOY["static_resources"]["clusters"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    (route,) = [route["route"] for route in manager["route_config"]["virtual_hosts"][0]["routes"] if "route" in route]
    return manager, route, cluster


def test_they_wait_longer_than_kvgate_does() -> None:
    manager, route, _ = envoy_parts()
    (istio,) = ISTIO["VirtualService"]["http"]
    waits = [
        directive("proxy_read_timeout"),
        route["timeout"],
        route["idle_timeout"],
        manager["stream_idle_timeout"],
        istio["timeout"],
    ]
    waits.append(LITELLM["litellm_settings"]["request_timeout"])
    assert min(seconds(wait) for wait in waits) >= POLICY.queue.wait_s_max + ANSWER_S


def test_they_give_up_idle_connections_first() -> None:
    _, _, cluster = envoy_parts()
    (options,) = cluster["typed_extension_protocol_options"].values()
    kept = [directive("keepalive_timeout"), options["common_http_protocol_options"]["idle_timeout"]]
    kept.append(ISTIO["DestinationRule"]["trafficPolicy"]["connectionPool"]["http"]["idleTimeout"])
    assert max(seconds(one) for one in kept) < KEEP_ALIVE_S


def test_they_repeat_only_what_was_never_sent() -> None:
    _, route, _ = envoy_parts()
    (istio,) = ISTIO["VirtualService"]["http"]
    assert directive("proxy_next_upstream") == "error"
    assert set(route["retry_policy"]["retry_on"].split(",")) <= NEVER_SENT
    assert set(istio["retries"]["retryOn"].split(",")) <= NEVER_SENT
    retries = LITELLM["router_settings"]["retry_policy"]
    assert retries["RateLimitErrorRetries"] == retries["TimeoutErrorRetries"] == 0


def test_they_take_no_proxy_away_for_its_refusals() -> None:
    _, _, cluster = envoy_parts()
    assert "outlier_detection" not in cluster
    assert "outlierDetection" not in ISTIO["DestinationRule"]["trafficPolicy"]
    assert min(LITELLM["router_settings"]["allowed_fails_policy"].values()) >= 1_000_000


def test_a_proxy_that_leaves_is_off_the_list_before_it_refuses() -> None:
    _, _, cluster = envoy_parts()
    (check,) = cluster["health_checks"]
    assert check["http_health_check"]["path"] == "/ready"
    assert seconds(check["interval"]) * check["unhealthy_threshold"] + seconds(check["timeout"]) < POLICY.relay.drain_accept_s


def test_nginx_passes_tokens_on_as_they_come_and_bodies_as_large_as_ours() -> None:
    assert (directive("proxy_buffering"), directive("proxy_http_version")) == ("off", "1.1")
    assert directive("client_max_body_size") == f"{POLICY.limits.body_bytes_max // 1024**2}m"


def test_no_client_says_whose_request_it_is() -> None:
    manager, _, _ = envoy_parts()
    (istio,) = ISTIO["VirtualService"]["http"]
    assert 'proxy_set_header X-Kvgate-Tenant "";' in NGINX
    assert "x-kvgate-tenant" in manager["route_config"]["virtual_hosts"][0]["request_headers_to_remove"]
    assert "x-kvgate-tenant" in istio["route"][0]["headers"]["request"]["remove"]


def test_both_autoscalers_ask_the_same_of_a_metric_that_there_is() -> None:
    keda, hpa, adapter = (yaml.safe_load((DEPLOY / "autoscaling" / name).read_text("utf-8")) for name in AUTOSCALING)
    wanted, _ = keda["spec"]["triggers"]
    (external,) = (metric["external"] for metric in hpa["spec"]["metrics"])
    (rule,) = adapter["rules"]["external"]
    model = external["metric"]["selector"]["matchLabels"]["pool"]
    assert wanted["metadata"]["query"] == f'sum({external["metric"]["name"]}{{pool="{model}"}})'
    assert rule["name"]["as"] == external["metric"]["name"]
    target = external["target"]
    assert target["type"] == wanted["metricType"] == "AverageValue"
    assert float(target["averageValue"].removesuffix("m")) / 1000 == float(wanted["metadata"]["threshold"])
    assert keda["spec"]["minReplicaCount"] == hpa["spec"]["minReplicas"] == 1
    assert keda["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa["spec"]["behavior"]
    documented = set(re.findall(r"^\| `(kvgate_[a-z_]+)` \|", (DEPLOY / "README.md").read_text("utf-8"), re.MULTILINE))
    named = {
        name for file in AUTOSCALING for name in re.findall(r"kvgate_[a-z_]+", (DEPLOY / "autoscaling" / file).read_text("utf-8"))
    }
    assert named - documented == set()
