"""A list of replicas in a file of its own, which whatever knows the fleet writes: YAML or JSON, items as under ``replicas`` of a policy."""

from yaml.nodes import MappingNode, SequenceNode

from proxy.config.faults import PolicyError
from proxy.config.nodes import FILE_BYTES_MAX, Faults, compose_any, kind_of
from proxy.config.schema_replicas import REPLICA, REPLICAS_MAX, check_replicas
from proxy.config.shape import ListOf
from proxy.core.policy import ReplicaPolicy

_WHY = "it is a list of replicas"


def parse_replicas(text: bytes, file: str) -> tuple[ReplicaPolicy, ...]:
    """Return the replicas; ``[]`` says that there are none, an empty file is a fault. Raises PolicyError with every fault.

    The list may stand under ``replicas:``, so that a policy file's section can be copied.
    """
    faults = Faults(file)
    if len(text) > FILE_BYTES_MAX:
        faults.add(
            None, "file", got="more than 1 MiB", allowed="at most 1 MiB", because="no list is that long: is it the right file?"
        )
        raise PolicyError(faults.found)
    try:
        root = compose_any(text.decode("utf-8-sig"), faults)
    except UnicodeDecodeError as error:
        faults.add(None, "file", got=f"a byte that is no UTF-8 at offset {error.start}", allowed="UTF-8 text", because=_WHY)
        raise PolicyError(faults.found) from error
    if isinstance(root, MappingNode):
        root = next((value for key, value in root.value if key.value == "replicas"), root)
    if isinstance(root, SequenceNode) and not root.value:
        return ()
    found: tuple[ReplicaPolicy, ...] | None = None
    if isinstance(root, SequenceNode):
        found = ListOf(REPLICA, REPLICAS_MAX, check_replicas).value(root, "replicas", _WHY, faults)
    elif not faults.found:
        got = "an empty file" if root is None else kind_of(root)
        faults.add(root, "file", got=got, allowed="a list, or [] for none", because=_WHY)
    if found is None:
        raise PolicyError(faults.in_order())
    return found
