"""The keys of ``tenants``: whom a request is accounted to (``config.schema``)."""

from proxy.config.scalars import HEADER_NAME, TEXT, choice, number
from proxy.config.shape import Key, MapOf, OneOrMany, Section
from proxy.core.policy_tenants import Tenants, TenantSource

TENANTS = Section(
    Tenants,
    {
        "from": Key("sources", OneOrMany(choice(TenantSource), 3), "the first that names somebody rules"),
        "header": Key("header", HEADER_NAME, "the header source reads it"),
        "weights": Key("weights", MapOf(TEXT, number(0.01, 1000), 10_000), "a share of zero would never be served"),
    },
)
