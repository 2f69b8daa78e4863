"""The part of the policy that says whom a request is accounted to (``core.policy``)."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class TenantSource(StrEnum):
    """Where a tenant's name can come from."""

    HEADER = "header"
    API_KEY = "api_key"  # a digest of the bearer token, never the token
    USER = "user"  # the body's ``user`` field


@dataclass(frozen=True, slots=True)
class Tenants:
    """Who a request is accounted to: the first source that names somebody. Weights not listed are 1."""

    sources: tuple[TenantSource, ...] = (TenantSource.HEADER, TenantSource.API_KEY, TenantSource.USER)
    header: str = "x-kvgate-tenant"
    weights: tuple[tuple[str, float], ...] = ()

    def tenant_of(self, headers: Mapping[str, str], user: str | None) -> str:
        """Name the tenant; ``default`` when nobody is named. ``headers`` has lower-case names. At most 64 characters."""
        for source in self.sources:
            name = self._named_by(source, headers, user)
            if name:
                return name[:64]  # it becomes a label and a map key, and the client chose its length
        return "default"

    def _named_by(self, source: TenantSource, headers: Mapping[str, str], user: str | None) -> str | None:
        if source is TenantSource.HEADER:
            return headers.get(self.header)
        if source is TenantSource.USER:
            return user
        token = headers.get("authorization") or headers.get("x-api-key")  # OpenAI's and Anthropic's way
        return None if not token else "key-" + hashlib.sha256(token.removeprefix("Bearer ").encode()).hexdigest()[:12]

    def weight_of(self, tenant: str) -> float:
        """Return the share weight of a tenant."""
        return dict(self.weights).get(tenant, 1.0)
