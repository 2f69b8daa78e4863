"""The keys of a policy file: one table, from which files are read, errors are worded, and documentation is checked."""

from collections.abc import Mapping
from typing import Any

from yaml.nodes import Node

from proxy.config.nodes import Faults
from proxy.config.scalars import (
    NETWORK,
    PATH_GLOB,
    TEXT,
    choice,
    duration,
    integer,
    number,
    size,
)
from proxy.config.schema_classes import CLASS, check_classes
from proxy.config.schema_relay import HEALTH, RELAY
from proxy.config.schema_replicas import DISCOVERY, REPLICA, REPLICAS_MAX, check_replicas
from proxy.config.schema_tenants import TENANTS
from proxy.config.shape import Key, ListOf, OneOrMany, Section
from proxy.core.outcome import Mode
from proxy.core.policy import (
    DEFAULT_CLASS,
    AnswerHeaders,
    Auth,
    Budget,
    ErrorDetail,
    Limits,
    Passthrough,
    Policy,
    Queue,
    Scrape,
    Store,
    TenantSource,
    TrafficClass,
)


def _check_budget(budget: Budget, nodes: Mapping[str, Node], path: str, faults: Faults) -> None:
    if budget.z_min > budget.z_max:
        node = nodes.get("z_min") or nodes["z_max"]
        got = f"z_min {budget.z_min:g} above z_max {budget.z_max:g}"
        faults.add(node, f"{path}.z_min", got=got, allowed="z_min up to z_max", because="z moves between the two")


def _check_scrape(scrape: Scrape, nodes: Mapping[str, Node], path: str, faults: Faults) -> None:
    if scrape.stale_s < scrape.interval_s + scrape.timeout_s:
        node = next(nodes[name] for name in ("stale", "interval", "timeout") if name in nodes)
        got = f"stale {scrape.stale_s:g}s with interval {scrape.interval_s:g}s and timeout {scrape.timeout_s:g}s"
        because = "one slow scrape would make a sound measurement count as unknown"
        faults.add(node, f"{path}.stale", got=got, allowed="stale at least interval + timeout", because=because)


def _check_store(store: Store, nodes: Mapping[str, Node], path: str, faults: Faults) -> None:
    if store.lease_s < 4.0 * max(store.beat_s, store.rewrite_s, store.timeout_s):
        node = next(nodes[name] for name in ("lease", "beat", "rewrite", "timeout") if name in nodes)
        got = (
            f"lease {store.lease_s:g}s with beat {store.beat_s:g}s, rewrite {store.rewrite_s:g}s and timeout {store.timeout_s:g}s"
        )
        because = "a proxy that is slow once would be given up and its place on every replica with it"
        faults.add(node, f"{path}.lease", got=got, allowed="lease at least four times each of them", because=because)


def _check_policy(policy: Policy, nodes: Mapping[str, Node], _: str, faults: Faults) -> None:
    tenants = policy.tenants
    if TenantSource.JWT in tenants.sources and policy.trusted_callers is None:
        because = "kvgate does not verify tokens: list the gateway that does, or anybody could name himself whoever he likes"
        faults.add(nodes["tenants"], "tenants.from", got="jwt", allowed="jwt beside trusted_callers", because=because)
    if policy.auth is Auth.REQUIRE and not tenants.by_key:
        because = "no key would be known, and every request refused"
        faults.add(nodes["auth"], "auth", got="require", allowed="require beside tenants.list with key_sha256", because=because)


def _make_policy(classes: tuple[TrafficClass, ...] = (), **fields: Any) -> Policy:
    ends = bool(classes) and classes[-1].match.everything
    return Policy(classes=classes if ends else (*classes, DEFAULT_CLASS), **fields)


QUEUE = Section(
    Queue,
    {
        "requests_max": Key("requests_max", integer(0, 1_000_000), "0 sheds what does not fit at once"),
        "tokens_max": Key("tokens_max", integer(0, 10_000_000_000), "it bounds the work that waits"),
        "wait_max": Key("wait_s_max", duration("0s", "24h"), "whoever waits longer is told when to come back"),
        "bytes_max": Key("bytes_max", size("0B", "64GiB"), "waiting bodies are held in memory"),
    },
)

BUDGET = Section(
    Budget,
    {
        "preemptions_per_1000": Key("preemptions_per_1000", number(0, 1000), "it is the rate that the margin is steered to"),
        "z_min": Key("z_min", number(0, 10), "it is a number of standard deviations"),
        "z_max": Key("z_max", number(0, 10), "it is a number of standard deviations"),
    },
    check=_check_budget,
)

SCRAPE = Section(
    Scrape,
    {
        "interval": Key("interval_s", duration("50ms", "60s"), "gauges change once per engine step, and no faster"),
        "timeout": Key("timeout_s", duration("50ms", "60s"), "a long prefill step can hold an answer up"),
        "stale": Key("stale_s", duration("100ms", "10m"), "an older measurement counts as unknown"),
        "probe_every": Key("probe_every", integer(1, 100_000), "a number of scrapes"),
    },
    check=_check_scrape,
)

PASSTHROUGH = Section(
    Passthrough,
    {"allow": Key("allow", OneOrMany(PATH_GLOB, 100), "only what controls an engine is closed, by its path or a glob")},
)

LIMITS = Section(
    Limits,
    {
        "body_max": Key("body_bytes_max", size("1KiB", "4GiB"), "a body is held in memory while its request waits"),
        "head_max": Key("head_bytes_max", size("1KiB", "16MiB"), "a head is held in memory until it is whole"),
        "head_timeout": Key("head_s_max", duration("100ms", "1h"), "who sends no whole head only holds a connection"),
        "body_timeout": Key("body_s_max", duration("100ms", "1h"), "who sends no whole body holds a connection and memory"),
        "buffer_max": Key("buffer_bytes_max", size("1MiB", "64GiB"), "it is memory that slow clients take"),
        "tokenizer_backlog_max": Key("tokenizer_backlog_max", integer(1, 1_000_000), "more would wait for the count alone"),
        "tokenizer_backlog_bytes_max": Key(
            "tokenizer_backlog_bytes_max", size("1KiB", "4GiB"), "more would wait for the count alone"
        ),
        "connections_max": Key("connections_max", integer(1, 1_000_000), "each costs a file descriptor here and one upstream"),
        "static_cap_per_replica": Key(
            "static_cap_per_replica", integer(1, 1_000_000), "it holds while a fault keeps the forecast out"
        ),
        "responses_max": Key("responses_max", integer(0, 100_000_000), "each id takes some 300 bytes"),
        "background_max": Key("background_s_max", duration("1s", "168h"), "a place must be given back some day"),
    },
)

STORE = Section(
    Store,
    {
        "timeout": Key("timeout_s", duration("1ms", "10s"), "a request waits no longer for the store"),
        "lease": Key("lease_s", duration("200ms", "10m"), "what a dead proxy holds is free again after it"),
        "beat": Key("beat_s", duration("20ms", "60s"), "each beat is a round trip"),
        "rewrite": Key("rewrite_s", duration("20ms", "60s"), "each rewrite is a round trip"),
        "ahead_ratio": Key("ahead_ratio", number(0.0, 0.25), "what is taken ahead is kept from others"),
    },
    check=_check_store,
)

POLICY = Section(
    _make_policy,
    {
        "mode": Key("mode", choice(Mode), "it says how far kvgate interferes"),
        "enforce_ratio": Key("enforce_ratio", number(0.0, 1.0), "it is a share of the tenants"),
        "replicas": Key("replicas", ListOf(REPLICA, REPLICAS_MAX, check_replicas), "they are the servers to forward to"),
        "discovery": Key("discovery", DISCOVERY, "it says where further servers are heard of"),
        "classes": Key("classes", ListOf(CLASS, 100, check_classes), "every request is matched against them in turn"),
        "tenants": Key("tenants", TENANTS, "it says whom a request is accounted to"),
        "auth": Key("auth", choice(Auth), "it says what a client's API key is to kvgate"),
        "trusted_callers": Key("trusted_callers", ListOf(NETWORK, 1000), "they may say who a request is from"),
        "queue": Key("queue", QUEUE, "it bounds what waits"),
        "budget": Key("budget", BUDGET, "it says how full replicas may become"),
        "scrape": Key("scrape", SCRAPE, "it says how replicas are measured"),
        "relay": Key("relay", RELAY, "it is the path to a replica and back"),
        "passthrough": Key("passthrough", PASSTHROUGH, "it opens paths that control engines"),
        "health": Key("health", HEALTH, "it says when a replica that fails is left alone"),
        "limits": Key("limits", LIMITS, "they bound what one process holds"),
        "store": Key("store", STORE, "it says how proxies share what they know"),
        "tokenizer": Key("tokenizer", TEXT, "it is a folder or a model name"),
        "headers": Key("headers", choice(AnswerHeaders), "it says what answers tell of kvgate"),
        "error_detail": Key("error_detail", choice(ErrorDetail), "it says how much a refused client is shown"),
    },
    check=_check_policy,
)
