"""Whom a request is accounted to, whose word counts on that, and what each tenant may take."""

import base64
import hashlib
import json
from ipaddress import ip_network

import pytest

from proxy.core.policy import Policy, TenantPolicy, Tenants, TenantSource
from proxy.core.policy_tenants import claim_of, key_digest

DIGEST = hashlib.sha256(b"sk-acme").hexdigest()
ACME = TenantPolicy("acme", weight=3.0, key_sha256=(DIGEST,), tokens_per_min=6000.0)


def token_of(claims: object) -> str:
    """A token as a gateway passes it on."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "RS256"}, claims)]
    return ".".join((*parts, "c2ln"))


def test_a_known_key_names_its_tenant() -> None:
    tenants = Tenants(sources=(TenantSource.API_KEY,), listed=(ACME,))
    assert tenants.tenant_of({"authorization": "Bearer sk-acme"}, None) == "acme"
    assert tenants.tenant_of({"authorization": "bearer sk-acme"}, None) == "acme"
    assert tenants.tenant_of({"x-api-key": "sk-acme"}, None) == "acme"
    assert tenants.tenant_of({"x-api-key": "sk-acme2"}, None).startswith("key-")
    assert key_digest({}) is None


def test_only_a_trusted_caller_is_named_by_what_nobody_verified() -> None:
    tenants = Tenants(sources=(TenantSource.HEADER, TenantSource.JWT, TenantSource.API_KEY), jwt_claim="team", listed=(ACME,))
    headers = {"x-kvgate-tenant": "boss", "authorization": f"Bearer {token_of({'team': 'blue'})}"}
    assert tenants.tenant_of(headers, None) == "boss"
    del headers["x-kvgate-tenant"]
    assert tenants.tenant_of(headers, None) == "blue"
    assert tenants.tenant_of(headers, None, trusted=False).startswith("key-")


@pytest.mark.parametrize(
    "token",
    [None, "", "a.b", "a.b.c", "a.!!!.c", token_of([1]), token_of({"other": "x"}), token_of({"team": ["x"]}), token_of({"team": True}),
     "a." + "A" * 20_000 + ".c", "a." + base64.urlsafe_b64encode(b"[" * 10_000).decode() + ".c", "a.é.c"],
)  # fmt: skip
def test_a_token_that_names_nobody(token: str | None) -> None:
    assert claim_of(token, "team") is None


def test_a_number_is_a_name_too() -> None:
    assert claim_of(token_of({"team": 7}), "team") == "7"


def test_what_a_tenant_may_take() -> None:
    tenants = Tenants(weights=(("old", 2.0),), listed=(ACME,), others=TenantPolicy(requests_per_s=1.0))
    assert tenants.policy_of("acme") is ACME
    assert tenants.weight_of("acme") == 3.0
    assert tenants.weight_of("old") == 2.0
    assert tenants.policy_of("old").requests_per_s == 1.0
    assert tenants.policy_of("new").requests_per_s == 1.0
    assert tenants.weight_of("new") == 1.0
    assert tenants.rated
    assert not tenants.shared
    assert not Tenants(weights=(("old", 2.0),)).rated
    assert Tenants(others=TenantPolicy(kv_share_max=0.5)).shared
    assert Tenants(listed=(TenantPolicy("a", kv_share_min=0.5),)).shared


@pytest.mark.parametrize(
    ("callers", "address", "trusted"),
    [
        (None, None, True),
        (None, "192.0.2.1", True),
        (("10.0.0.0/8",), "10.255.255.255", True),
        (("10.0.0.0/8",), "11.0.0.0", False),
        (("10.0.0.0/8",), "::ffff:10.0.0.1", True),
        (("fd00::/8",), "fd00::1", True),
        (("fd00::/8",), "10.0.0.1", False),
        (("10.0.0.0/8",), None, False),
        (("10.0.0.0/8",), "unix", False),
    ],
)
def test_who_is_trusted(callers: tuple[str, ...] | None, address: str | None, *, trusted: bool) -> None:
    networks = None if callers is None else tuple(ip_network(one) for one in callers)
    assert Policy(trusted_callers=networks).trusts(address) is trusted
