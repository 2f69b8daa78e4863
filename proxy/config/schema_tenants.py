"""The keys of ``tenants``: whom a request is accounted to, and what each may take (``config.schema``)."""

from collections.abc import Mapping

from yaml.nodes import Node

from proxy.config.nodes import Faults
from proxy.config.scalars import HEADER_NAME, NAME, SHA256, TEXT, choice, duration, integer, number
from proxy.config.shape import Key, MapOf, OneOrMany, Section, TableOf
from proxy.core.policy_tenants import TenantPolicy, Tenants, TenantSource

_NO_KEYS = "keys are kept as key_sha256: a key itself would end up in version control"


def _check_tenant(tenant: TenantPolicy, nodes: Mapping[str, Node], path: str, faults: Faults) -> None:
    if tenant.kv_share_min > tenant.kv_share_max:
        got = f"kv_share_min {tenant.kv_share_min:g} above kv_share_max {tenant.kv_share_max:g}"
        faults.add(
            nodes["kv_share_min"], f"{path}.kv_share_min", got=got, allowed="up to kv_share_max", because="it could not use it"
        )
    least, most = tenant.engine_priority_min, tenant.engine_priority_max
    if least is not None and most is not None and least > most:
        node, because = nodes["engine_priority_min"], "no number is in between"
        got = f"engine_priority_min {least} above engine_priority_max {most}"
        faults.add(node, f"{path}.engine_priority_min", got=got, allowed="up to engine_priority_max", because=because)
    if "burst" in nodes and not tenant.rated:
        because = "it is counted in seconds of a rate, and there is none"
        faults.add(nodes["burst"], f"{path}.burst", got="this key", allowed="it beside a rate", because=because)


def _check_tenants(tenants: tuple[TenantPolicy, ...], nodes: Mapping[str, Node], path: str, faults: Faults) -> None:
    owners: dict[str, str] = {}
    for index, tenant in enumerate(tenants):
        for digest in tenant.key_sha256:
            if owners.setdefault(digest, tenant.name) != tenant.name:
                because = f"it is one of {owners[digest]}'s, and a key tells whose a request is"
                where = f"{path}.{tenant.name}.key_sha256"
                faults.add(nodes[str(index)], where, got=f'"{digest[:12]}…" again', allowed="each key once", because=because)
    kept = sum(tenant.kv_share_min for tenant in tenants)
    if kept > 1.0 + 1e-9:
        got = f"kv_share_min of {kept:g} in all"
        faults.add(nodes["0"], path, got=got, allowed="at most 1 in all", because="no more than the whole pool can be kept")


def _check_accounts(tenants: Tenants, nodes: Mapping[str, Node], path: str, faults: Faults) -> None:
    listed = {tenant.name for tenant in tenants.listed}
    for name, _ in tenants.weights:
        if name in listed:
            because = f"{path}.list has its weight"
            faults.add(nodes["weights"], f"{path}.weights.{name}", got="this tenant", allowed="it in one place", because=because)
    if "jwt_claim" in nodes and TenantSource.JWT not in tenants.sources:
        because = "no tenant is named by a token"
        faults.add(nodes["jwt_claim"], f"{path}.jwt_claim", got="this key", allowed="it beside jwt in from", because=because)


_SHARE = number(0, 1)
_ENGINE_PRIORITY = integer(-1_000_000_000, 1_000_000_000)
LIMITS = {
    "weight": Key("weight", number(0.01, 1000), "a share of zero would never be served"),
    "priority": Key("priority", integer(-1000, 1000), "it is added to that of the class"),
    "requests_per_s": Key("requests_per_s", number(0.001, 1_000_000), "who may send nothing has no key"),
    "tokens_per_min": Key("tokens_per_min", number(1, 1e12), "who may send nothing has no key"),
    "burst": Key("burst_s", duration("100ms", "1h"), "it is what may be taken at once, in seconds of the rate"),
    "engine_priority_min": Key("engine_priority_min", _ENGINE_PRIORITY, "it is vLLM's own priority, and lower goes first"),
    "engine_priority_max": Key("engine_priority_max", _ENGINE_PRIORITY, "it is vLLM's own priority, and lower goes first"),
    "kv_share_max": Key("kv_share_max", number(0.001, 1), "it is a share of the pool, and a share of zero would never be served"),
}

TENANT = Section(
    TenantPolicy,
    {
        **LIMITS,
        "kv_share_min": Key("kv_share_min", _SHARE, "it is a share of the pool"),
        "key_sha256": Key("key_sha256", OneOrMany(SHA256, 100), "a key itself would end up in version control"),
    },
    refused=dict.fromkeys(("api_key", "key", "token", "password"), _NO_KEYS),
    check=_check_tenant,
)

TENANTS = Section(
    Tenants,
    {
        "from": Key("sources", OneOrMany(choice(TenantSource), 4), "the first that names somebody rules"),
        "header": Key("header", HEADER_NAME, "the header source reads it"),
        "jwt_claim": Key("jwt_claim", TEXT, "the jwt source reads it"),
        "undisturbed_ratio": Key(
            "undisturbed_ratio", number(0, 1), "it is how many of the others' requests find room at once; 0 keeps none for them"
        ),
        "weights": Key("weights", MapOf(TEXT, number(0.01, 1000), 10_000), "a share of zero would never be served"),
        "list": Key("listed", TableOf(NAME, TENANT, 10_000, _check_tenants), "it says what each tenant may take"),
        "others": Key(
            "others", Section(TenantPolicy, LIMITS, check=_check_tenant), "it is what each tenant may take that is not listed"
        ),
    },
    check=_check_accounts,
)
