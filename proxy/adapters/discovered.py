"""A replica that a name server or a cluster told of: an address and a port, and for the rest as the policy has it for all."""

from dataclasses import replace

from proxy.config.replica_url import ReplicaUrlError, normal_url
from proxy.config.schema_replicas import replica_name
from proxy.core.policy import Discovery, ReplicaPolicy
from proxy.ports.replicas import DiscoveryError


def replica_at(discovery: Discovery, host: str, port: object) -> ReplicaPolicy:
    """The replica there. Raises DiscoveryError where that makes no address of a replica."""
    try:
        url = normal_url(f"{discovery.scheme}://{host}:{port}")
    except ReplicaUrlError as error:
        raise DiscoveryError(f"{host}:{port}: {error}") from error
    return replace(discovery.replica, url=url, name=replica_name(url))
