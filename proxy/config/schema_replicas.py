"""The keys of replicas: those that are listed, and where further ones are heard of."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from yaml.nodes import Node

from proxy.config.nodes import Faults
from proxy.config.scalars import ENV_NAME, HEADER_NAME, HEADER_VALUE, NAME, TEXT, URL, ZMQ_ENDPOINT, choice, duration, integer
from proxy.config.schema_classes import KEPT_OUT, SECRETS, check_one_key
from proxy.config.shape import ITSELF, Key, MapOf, Section
from proxy.core.policy import Discovery, DnsNames, KubernetesService, ReplicaPolicy, Scheme

REPLICAS_MAX = 1000
SOURCES = ("file", "dns", "kubernetes")
_KEPT_OUT_HEADERS = dict.fromkeys(("authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"), KEPT_OUT)


def replica_name(url: str) -> str:
    """Return the name of a replica that was given none: its address without the scheme."""
    parts = urlsplit(url)
    return (parts.netloc + parts.path)[:64]


def _make_replica(url: str, name: str | None = None, **fields: Any) -> ReplicaPolicy:
    return ReplicaPolicy(url=url, name=name or replica_name(url), **fields)


def check_replicas(replicas: tuple[ReplicaPolicy, ...], nodes: Mapping[str, Node], path: str, faults: Faults) -> None:
    for attribute in ("url", "name"):
        seen: dict[str, int] = {}
        for index, replica in enumerate(replicas):
            value: str = getattr(replica, attribute)
            if value in seen:
                because = f"item {seen[value] + 1} has it already, and a cache counted twice is over-filled"
                where = f"{path}[{index}].{attribute}"
                faults.add(nodes[str(index)], where, got=f'"{value}" again', allowed="each replica once", because=because)
            seen.setdefault(value, index)


def _check_dns(dns: DnsNames, nodes: Mapping[str, Node], path: str, faults: Faults) -> None:
    if (dns.srv is None) == (dns.name is None) or (dns.name is None) != (dns.port is None):
        node = next(nodes[name] for name in ("srv", "port", "name", "every", ITSELF) if name in nodes)
        got = " and ".join(name for name in ("name", "port", "srv") if name in nodes) or "none of them"
        because = "addresses need a port, and SRV records tell it"
        faults.add(node, path, got=got, allowed="name and port, or srv", because=because)


def _check_discovery(_: Discovery, nodes: Mapping[str, Node], path: str, faults: Faults) -> None:
    named = [name for name in SOURCES if name in nodes]
    if len(named) != 1:
        node = nodes[named[1]] if named else nodes[ITSELF]
        got = " and ".join(named) or "none of them"
        faults.add(
            node, path, got=got, allowed="one of file, dns, kubernetes", because="replicas of two sources could be the same"
        )


def _make_template(**fields: Any) -> ReplicaPolicy:
    return ReplicaPolicy(url="", name="", **fields)


REPLICA = Section(
    _make_replica,
    {
        "url": Key("url", URL, "this is where requests go", required=True),
        "name": Key("name", NAME, "it labels metrics and logs"),
        "kv_blocks": Key("kv_blocks", integer(2, 100_000_000), "one block is the engine's null block, so two are the least"),
        "block_size": Key("block_size", integer(1, 65_536), "it is vLLM's --block-size, in tokens"),
        "max_num_seqs": Key("sequences_max", integer(1, 1_000_000), "it is vLLM's --max-num-seqs"),
        "api_key_env": Key("api_key_env", ENV_NAME, "the key is read from it at start"),
        "api_key_file": Key("api_key_file", TEXT, "the key is read from it at start"),
        "headers": Key("headers", MapOf(HEADER_NAME, HEADER_VALUE, 32, _KEPT_OUT_HEADERS), "they are sent with every request"),
        "kv_events": Key("kv_events", ZMQ_ENDPOINT, "it is the endpoint of vLLM's --kv-events-config, with a host to connect to"),
    },
    refused=SECRETS,
    short="url",
    check=check_one_key,
)

TEMPLATE = Section(
    _make_template,
    {name: key for name, key in REPLICA.keys.items() if name not in {"url", "name", "kv_events"}},
    refused=SECRETS,
    check=check_one_key,
)

DNS = Section(
    DnsNames,
    {
        "name": Key("name", TEXT, "its addresses are the replicas'"),
        "port": Key("port", integer(1, 65_535), "it is a TCP port"),
        "srv": Key("srv", TEXT, "its records name hosts and ports"),
        "every": Key("every_s", duration("100ms", "1h"), "it is how often the name server is asked"),
    },
    check=_check_dns,
)

KUBERNETES = Section(
    KubernetesService,
    {
        "service": Key("service", NAME, "its EndpointSlices name the replicas", required=True),
        "namespace": Key("namespace", NAME, "the Service is there"),
        "port": Key("port", NAME, "it is a number or a port's name"),
    },
    short="service",
)

DISCOVERY = Section(
    Discovery,
    {
        "file": Key("file", TEXT, "it is a list of replicas that is read whenever it changes"),
        "dns": Key("dns", DNS, "a name server is asked for them again and again"),
        "kubernetes": Key("kubernetes", KUBERNETES, "the cluster's API tells of them"),
        "scheme": Key("scheme", choice(Scheme), "replicas are spoken to over http or https"),
        "replica": Key("replica", TEMPLATE, "it holds for every replica that is discovered"),
    },
    check=_check_discovery,
)
