"""Names that refer to one another: tenants that nobody can be, and fallbacks that lead back (``config.contradictions``)."""

from fnmatch import fnmatchcase

from proxy.config.faults import did_you_mean, quoted
from proxy.config.nodes import Faults
from proxy.config.places import Places
from proxy.core.policy import Policy
from proxy.core.policy_classes import TrafficClass
from proxy.core.policy_tenants import NOBODY, Auth, TenantSource

_WILD = frozenset("*?[")
_BY_CALLER = frozenset({TenantSource.HEADER, TenantSource.JWT})  # what only a trusted caller may say


def check_tenants(policy: Policy, places: Places, faults: Faults) -> None:
    """Note tenants, keys and sources that nothing comes from."""
    tenants = policy.tenants
    if places.has("tenants.header") and TenantSource.HEADER not in tenants.sources:
        faults.warn(
            places.at("tenants.header"), "tenants.header", got="a header that nobody reads", allowed="header in tenants.from",
            because="tenants.from does not list header",
        )  # fmt: skip
    if places.has("trusted_callers") and not _BY_CALLER & set(tenants.sources):
        faults.warn(
            places.at("trusted_callers"), "trusted_callers", got="callers that are asked nothing",
            allowed="header or jwt in tenants.from", because="only those two are believed of some callers and not of others",
        )  # fmt: skip
    _unreachable_tenants(policy, places, faults)
    _unmatched_tenants(policy, places, faults)


def _by_key_alone(policy: Policy) -> bool:
    """Whether nobody but a key names a tenant: a header, a user field or a token can name anybody."""
    return policy.tenants.sources == (TenantSource.API_KEY,)


def _can_be(policy: Policy, name: str) -> bool:
    """Whether somebody can be that tenant where keys alone name them: its own key, the digest of another, or none at all."""
    named = name in policy.tenants.by_key.values() or name.startswith("key-") or name == NOBODY
    return named or not _by_key_alone(policy)


def _unreachable_tenants(policy: Policy, places: Places, faults: Faults) -> None:
    """Listed and weighed tenants that no source can name."""
    tenants = policy.tenants
    keys = [f"tenants.list.{tenant.name}" for tenant in tenants.listed if not _can_be(policy, tenant.name)]
    keys += [f"tenants.weights.{name}" for name, _ in tenants.weights if not _can_be(policy, name)]
    for key in keys:
        because = "tenants.from knows tenants by their keys alone, and this one has none"
        faults.warn(places.at(key), key, got="a tenant that nobody is", allowed="key_sha256 in tenants.list", because=because)


def _unmatched_tenants(policy: Policy, places: Places, faults: Faults) -> None:
    """Classes that ask for a tenant or a key which is not listed where all are."""
    tenants = policy.tenants
    listed = [tenant.name for tenant in tenants.listed] + [name for name, _ in tenants.weights]
    for index, one in enumerate(policy.classes):
        name, path = one.match.tenant, f"classes[{index}].match"
        known = name is None or any(fnmatchcase(tenant, name) for tenant in listed)
        closed = name is not None and not _WILD & set(name) and not _can_be(policy, name)
        if name is not None and not known and (closed or did_you_mean(name, listed)):
            faults.warn(
                places.at(f"{path}.tenant"), f"{path}.tenant", got=quoted(name) + did_you_mean(name, listed),
                allowed="a tenant of tenants.list", because="no tenant of the list is named so",
            )  # fmt: skip
        strange = [digest for digest in one.match.key_sha256 if digest not in tenants.by_key]
        if policy.auth is Auth.REQUIRE and strange:
            faults.warn(
                places.at(f"{path}.key_sha256"), f"{path}.key_sha256", got=f'"{strange[0][:12]}…"',
                allowed="keys of tenants.list", because="auth: require lets no other key in",
            )  # fmt: skip


def check_fallbacks(policy: Policy, places: Places, faults: Faults) -> None:
    """Note fallbacks that lead back to where they came from, at once or by way of others."""
    leads = {index: _next_classes(policy, one) for index, one in enumerate(policy.classes)}
    for index, one in enumerate(policy.classes):
        for number, fallback in enumerate(one.fallbacks):
            key = f"classes[{index}].fallbacks[{number}]"
            if fallback.url is not None or fallback.model is None:
                continue
            if fallback.model == one.match.model:
                because = "it is the model of the class itself, which has no room"
                faults.add(places.at(key), key, got=quoted(fallback.model), allowed="another model", because=because)
            elif _leads_back(index, _taken_by(policy, fallback.model), leads):
                because = f"the fallbacks of {fallback.model} lead back to {one.name}: when one is full, so is the other"
                faults.warn(places.at(key), key, got=quoted(fallback.model), allowed="a way that ends", because=because)


def _next_classes(policy: Policy, one: TrafficClass) -> frozenset[int]:
    models = [fallback.model for fallback in one.fallbacks if fallback.url is None and fallback.model is not None]
    return frozenset(index for model in models for index in _taken_by(policy, model))


def _taken_by(policy: Policy, model: str) -> frozenset[int]:
    """Return the classes that ask for this very model: one that takes any says nothing of where it goes."""
    return frozenset(index for index, one in enumerate(policy.classes) if _asks_for(one, model))


def _asks_for(one: TrafficClass, model: str) -> bool:
    glob = one.match.model
    return glob is not None and not _WILD & set(glob) and glob == model


def _leads_back(start: int, first: frozenset[int], leads: dict[int, frozenset[int]]) -> bool:
    seen: set[int] = set()
    pending = list(first)
    while pending:
        index = pending.pop()
        if index == start:
            return True
        if index not in seen:
            seen.add(index)
            pending += leads[index]
    return False
