"""The keys of ``relay`` and ``health``: how a replica is spoken to, and when one that fails is left alone (``config.schema``)."""

from collections.abc import Mapping

from yaml.nodes import Node

from proxy.config.nodes import Faults
from proxy.config.scalars import duration, integer, number
from proxy.config.shape import Key, Section
from proxy.core.policy_relay import Health, Relay


def _check_health(health: Health, nodes: Mapping[str, Node], path: str, faults: Faults) -> None:
    if health.eject_s > health.eject_s_max:
        node = nodes.get("eject") or nodes["eject_max"]
        got = f"eject {health.eject_s:g}s above eject_max {health.eject_s_max:g}s"
        faults.add(
            node, f"{path}.eject", got=got, allowed="eject up to eject_max", because="it is doubled from the one to the other"
        )


def _check_relay(relay: Relay, nodes: Mapping[str, Node], path: str, faults: Faults) -> None:
    if relay.total_s < max(relay.first_byte_s, relay.idle_s):
        node = next(nodes[name] for name in ("total", "first_byte", "idle") if name in nodes)
        got = f"total {relay.total_s:g}s with first_byte {relay.first_byte_s:g}s and idle {relay.idle_s:g}s"
        because = "the whole is never shorter than its parts, so the others could not be reached"
        faults.add(node, f"{path}.total", got=got, allowed="total at least first_byte and idle", because=because)


RELAY = Section(
    Relay,
    {
        "connect": Key("connect_s", duration("10ms", "60s"), "a replica that takes longer to connect to is not there"),
        "reroutes_max": Key("reroutes_max", integer(0, 100), "each reroute delays the client"),
        "retry_ratio": Key("retry_ratio", number(0, 1), "retries beyond that would multiply an outage"),
        "retries_per_s_min": Key("retries_per_s_min", number(0, 10_000), "a share of little traffic is less than one retry"),
        "first_byte": Key("first_byte_s", duration("100ms", "24h"), "an answer that does not stream comes when it is whole"),
        "idle": Key("idle_s", duration("100ms", "24h"), "an engine that preempts a request is silent for a while"),
        "total": Key("total_s", duration("100ms", "24h"), "a long answer takes long"),
        "drain_accept": Key("drain_accept_s", duration("0s", "10m"), "load balancers need time to see /ready turn"),
        "keepalive_after": Key("keepalive_after_s", duration("100ms", "1h"), "a comment tells of it that often while it waits"),
        "grace": Key("grace_s", duration("0s", "24h"), "what runs may finish within it"),
    },
    check=_check_relay,
)

HEALTH = Section(
    Health,
    {
        "failures_max": Key("failures_max", integer(1, 1000), "so many in a row are no accident"),
        "failure_ratio_max": Key("failure_ratio_max", number(0.01, 1), "it is a share of the requests sent to a replica"),
        "requests_min": Key("requests_min", integer(1, 100_000), "a share of few requests is chance"),
        "eject": Key("eject_s", duration("100ms", "1h"), "a replica that was ejected is tried again after it"),
        "eject_max": Key("eject_s_max", duration("100ms", "24h"), "the time doubles up to it"),
        "eject_ratio_max": Key("eject_ratio_max", number(0, 1), "it is a share of a pool's replicas"),
        "slow_start": Key("slow_start_s", duration("0s", "1h"), "a replica that comes back is cold"),
    },
    check=_check_health,
)
