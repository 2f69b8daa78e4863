"""The part of the policy that says whom a request is accounted to, and what each may take (``core.policy``)."""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

NAME_CHARS_MAX = 64  # a name becomes a label and a map key, and the client chose its length
JWT_BYTES_MAX = 16 * 1024  # header lines of more are refused by most servers
NOBODY = "default"


class TenantSource(StrEnum):
    """Where a tenant's name can come from."""

    HEADER = "header"
    API_KEY = "api_key"  # the tenant whose key it is, else a digest of the bearer token, never the token
    USER = "user"  # the body's ``user`` field
    JWT = "jwt"  # a claim of the bearer token, which a gateway in front has verified


class Auth(StrEnum):
    """What an API key that a client sends is to kvgate."""

    PASS = "pass"  # noqa: S105  the word of the policy file: the replica judges it
    REQUIRE = "require"  # it must be a tenant's, and the replica sees its own in its place


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """What one tenant may take. None: no limit."""

    name: str = NOBODY
    weight: float = 1.0
    key_sha256: tuple[str, ...] = ()  # of its API keys, in hexadecimal: a digest in a file opens nothing
    priority: int = 0  # added to that of the class
    requests_per_s: float | None = None
    tokens_per_min: float | None = None  # prompt and output tokens
    # Seconds of its rates that a tenant may take at once after a pause. Clients come in bursts: ten seconds even out those of a page of
    # calls, and are short enough that a rate per minute means what it says.
    burst_s: float = 10.0
    kv_share_max: float = 1.0  # of the pool's KV blocks
    kv_share_min: float = 0.0  # kept free for it
    # Of the engine's own priority, which clients may send and which runs lower numbers first. Untouched by itself: engines ignore it
    # unless they were started for it (--scheduling-policy priority), and then it is often a gateway in front that sets it.
    engine_priority_min: int | None = None
    engine_priority_max: int | None = None

    def engine_priority(self, asked: int) -> int:
        """The engine's priority for one who asks for ``asked``."""
        least = asked if self.engine_priority_min is None else max(asked, self.engine_priority_min)
        return least if self.engine_priority_max is None else min(least, self.engine_priority_max)

    @property
    def rated(self) -> bool:
        """Whether it has a rate."""
        return self.requests_per_s is not None or self.tokens_per_min is not None


@dataclass(frozen=True)
class Tenants:
    """Who a request is accounted to: the first source that names somebody. Weights not listed are 1.

    ``others`` is what each tenant may take that is not listed.
    """

    sources: tuple[TenantSource, ...] = (TenantSource.HEADER, TenantSource.API_KEY, TenantSource.USER)
    header: str = "x-kvgate-tenant"
    jwt_claim: str = "sub"
    weights: tuple[tuple[str, float], ...] = ()
    listed: tuple[TenantPolicy, ...] = ()
    others: TenantPolicy = field(default_factory=TenantPolicy)
    # Of the others' requests, how many find room at once beside a tenant that asks for more than its share; 0: none is kept for them. Not
    # by itself, since room that is kept stands empty for a part of the time: a pool of 35 sequences that everybody overloads serves up to
    # an eighth less with 0.99.
    undisturbed_ratio: float = 0.0

    def tenant_of(self, headers: Mapping[str, str], user: str | None, *, trusted: bool = True) -> str:
        """Name the tenant; ``default`` when nobody is named. ``headers`` has lower-case names. At most 64 characters.

        A caller that is not ``trusted`` is named neither by a header nor by a token that nobody verified.
        """
        for source in self.sources:
            name = self._named_by(source, headers, user, trusted=trusted)
            if name:
                return utf8(name[:NAME_CHARS_MAX])
        return NOBODY

    def _named_by(self, source: TenantSource, headers: Mapping[str, str], user: str | None, *, trusted: bool) -> str | None:
        match source:
            case TenantSource.HEADER:
                return headers.get(self.header) if trusted else None
            case TenantSource.USER:
                return user
            case TenantSource.JWT:
                return claim_of(bearer_of(headers), self.jwt_claim) if trusted else None
            case TenantSource.API_KEY:
                digest = key_digest(headers)
                return None if digest is None else self.by_key.get(digest) or f"key-{digest[:12]}"

    @cached_property
    def by_key(self) -> dict[str, str]:
        """Tenants by the digest of a key of theirs."""
        return {digest: tenant.name for tenant in self.listed for digest in tenant.key_sha256}

    @cached_property
    def _by_name(self) -> dict[str, TenantPolicy]:
        weighted = {name: replace(self.others, name=name, weight=weight) for name, weight in self.weights}
        return weighted | {tenant.name: tenant for tenant in self.listed}

    def policy_of(self, tenant: str) -> TenantPolicy:
        """What a tenant may take."""
        return self._by_name.get(tenant, self.others)

    def key_of(self, tenant: str, name: str) -> str:
        """The policy key that says ``name`` of a tenant."""
        if name == "undisturbed_ratio":  # of all
            return f"tenants.{name}"
        return f"tenants.list.{tenant}.{name}" if any(one.name == tenant for one in self.listed) else f"tenants.others.{name}"

    def weight_of(self, tenant: str) -> float:
        """Return the share weight of a tenant."""
        return self.policy_of(tenant).weight

    @cached_property
    def rated(self) -> bool:
        """Whether any tenant has a rate."""
        return self.others.rated or any(tenant.rated for tenant in self.listed)

    @cached_property
    def shared(self) -> bool:
        """Whether any tenant's share of the pool is bounded or kept."""
        return bool(self.floors) or any(tenant.kv_share_max < 1.0 for tenant in (self.others, *self.listed))

    @cached_property
    def floors(self) -> tuple[TenantPolicy, ...]:
        """Tenants for whom a share is kept."""
        return tuple(tenant for tenant in self.listed if tenant.kv_share_min > 0.0)


def utf8(name: str) -> str:
    """The name with ``?`` for halves of surrogate pairs, which JSON can escape and nothing that shows a name can write."""
    return name if name.isascii() else name.encode("utf-8", "replace").decode()


def bearer_of(headers: Mapping[str, str]) -> str | None:
    """The API key or token that came with a request, OpenAI's way or Anthropic's; None where there is none."""
    token = headers.get("authorization") or headers.get("x-api-key")
    return None if not token else token[7:] if token[:7].lower() == "bearer " else token


def key_digest(headers: Mapping[str, str]) -> str | None:
    """SHA-256 of the API key, in hexadecimal; None where there is none."""
    token = bearer_of(headers)
    return None if token is None else hashlib.sha256(token.encode()).hexdigest()


def claim_of(token: str | None, claim: str) -> str | None:
    """A claim of a JSON web token as it stands there; None where there is none. Nothing is verified here."""
    parts = [] if token is None or len(token) > JWT_BYTES_MAX else token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    value = claims.get(claim) if isinstance(claims, dict) else None
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
