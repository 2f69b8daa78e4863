"""What of a process goes into a ticket: decisions and policy without the names of tenants, and without what opens a door.

Tenants are customers, and a ticket travels: unless they are asked for they become names of a keyed hash whose key is thrown away, equal
ones equal within one snapshot. Ids of requests stay, for it is by them that a ticket is about something.

Fails: a tenant whose name is also a word of ours (``default`` aside) is replaced there too.
"""

import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import msgspec

from proxy.wire.decision import Decision, shown

HIDDEN = "(hidden)"
NOBODY = "default"
_SECRET_KEYS = frozenset({"headers", "key_sha256"})

Names = Callable[[str], str]


def hashing(salt: bytes) -> Names:
    """Names in place of tenants' own."""

    def named(tenant: str) -> str:
        return tenant if tenant == NOBODY else "tenant-" + blake2b(tenant.encode(), key=salt, digest_size=6).hexdigest()

    return named


def decision_shown(one: Decision, names: Names | None) -> dict[str, Any]:
    """A decision as it is shown, its tenant under another name everywhere."""
    if names is None or one.tenant == NOBODY:
        return shown(one)
    name = names(one.tenant)
    told: dict[str, Any] = msgspec.to_builtins(shown(one))
    told["request"]["tenant"] = name
    told["reason"] = renamed(told["reason"], one.tenant, name)
    if told["refused"] is not None:
        told["refused"] = {key: renamed(value, one.tenant, name) for key, value in told["refused"].items()}
    return told


def renamed(value: Any, tenant: str, name: str) -> Any:
    """A text with the tenant under another name; what is no text stays."""
    return re.sub(rf"(?<!\w){re.escape(tenant)}(?!\w)", name, value) if isinstance(value, str) and tenant else value


def policy_shown(value: Any, names: Names | None) -> Any:
    """A policy's fields without headers' values and keys' digests; tenants under other names."""
    if isinstance(value, list | tuple):
        return [policy_shown(one, names) for one in value]
    if not isinstance(value, dict):
        return value
    told: dict[str, Any] = {
        key: HIDDEN if key in _SECRET_KEYS and one else policy_shown(one, names) for key, one in value.items()
    }
    if names is not None and "kv_share_max" in told:  # a tenant's
        told["name"] = names(told["name"])
    if names is not None and "weights" in told:
        told["weights"] = [[names(tenant), weight] for tenant, weight in told["weights"]]
    return told


def metrics_shown(text: str, names: Names | None) -> str:
    """An exposition; series of single tenants are left out where they have no names."""
    return text if names is None else "".join(line for line in text.splitlines(keepends=True) if 'tenant="' not in line)
