"""What is sent to a replica with every request: the policy's headers, and the API key that it only names."""

from collections.abc import Mapping
from pathlib import Path

from proxy.config.plain_file import read_plain
from proxy.config.settings import SettingsError
from proxy.core.policy import Fallback, Policy, ReplicaPolicy

OWN_SECRETS = frozenset(
    {"KVGATE_ADMIN_TOKEN", "KVGATE_REDIS"}
)  # whoever lists replicas could have them sent to an address of his own
KEY_BYTES_MAX = 64 * 1024  # more than any head may hold


def request_headers(replica: ReplicaPolicy, environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return header pairs, names in lower case, ``authorization`` last where a key is named.

    Raises SettingsError when the key is not where the policy says. The message names the place and never the key.
    """
    key = _api_key(f"replica {replica.name}", replica, environ)
    return replica.headers if key is None else (*replica.headers, ("authorization", f"Bearer {key}"))


def fallback_headers(policy: Policy, environ: Mapping[str, str]) -> dict[Fallback, tuple[tuple[str, str], ...]]:
    """Return the headers that go with every request to an API outside, by the fallback. Raises SettingsError as ``request_headers``."""
    found: dict[Fallback, tuple[tuple[str, str], ...]] = {}
    for fallback in (one for traffic_class in policy.classes for one in traffic_class.fallbacks if one.url is not None):
        key = _api_key(f"fallback {fallback.url}", fallback, environ)
        found[fallback] = () if key is None else (("authorization", f"Bearer {key}"),)
    return found


def _api_key(whose: str, named: ReplicaPolicy | Fallback, environ: Mapping[str, str]) -> str | None:
    if named.api_key_env in OWN_SECRETS:
        raise SettingsError(
            [f"{whose}: the environment variable {named.api_key_env} holds a secret of kvgate's own, and no API key"]
        )
    if named.api_key_env is not None:
        return _sound(environ.get(named.api_key_env, ""), whose, f"the environment variable {named.api_key_env}")
    if named.api_key_file is not None:
        place = f"the file {named.api_key_file}"
        try:
            text = read_plain(Path(named.api_key_file), KEY_BYTES_MAX).content.decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError([f"{whose}: {place} with its API key cannot be read"]) from error
        return _sound(text, whose, place)
    return None


def _sound(text: str, whose: str, place: str) -> str:
    """Return the key without the line end that editors and ``echo`` add."""
    key = text.strip()
    if not key:
        raise SettingsError([f"{whose}: {place} should hold its API key and is empty or not set"])
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise SettingsError([f"{whose}: {place} should hold its API key, one word on one line, and holds something else"])
    return key
