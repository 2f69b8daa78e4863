"""Who a request is from: the caller's address, and whether the key that came with it opens the door (``auth`` of the policy).

Under ``auth: require`` a request needs the API key of a tenant, by its digest in ``tenants.list``; health, readiness and metrics do not.
The key is kvgate's business then, and the replica sees its own or none (``Services.upstream_headers``).
"""

from collections.abc import Mapping

from proxy.core.outcome import Outcome, Refusal
from proxy.core.policy import Auth, Policy
from proxy.core.policy_tenants import key_digest
from proxy.ports import Headers
from proxy.wire.answers import GATE_API_KEY

KEY_FIELDS = (b"authorization", b"x-api-key")


def caller_of(scope: Mapping[str, object]) -> str | None:
    """The IP address that the connection came from; None where it has none (a Unix socket)."""
    client = scope.get("client")
    return str(client[0]) if isinstance(client, tuple | list) and client else None


def key_refusal(policy: Policy, headers: Headers) -> Refusal | None:
    """Why the key that came with a request does not do; None for one that does, and where none is asked for."""
    if policy.auth is Auth.PASS:
        return None
    digest = key_digest({name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name in KEY_FIELDS})
    if digest is not None and digest in policy.tenants.by_key:
        return None
    message = "No API key was sent: send one as `Authorization: Bearer KEY` or `x-api-key: KEY`."
    if digest is not None:
        message = "The API key that was sent is nobody's here."
    return Refusal(Outcome.UNAUTHORIZED, gate=GATE_API_KEY, message=message, policy_key="auth")
