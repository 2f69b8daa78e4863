"""What is sent to a replica with every request: the policy's headers, and the API key that it only names."""

from collections.abc import Mapping
from pathlib import Path

from proxy.config.settings import SettingsError
from proxy.core.policy import ReplicaPolicy


def request_headers(replica: ReplicaPolicy, environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return header pairs, names in lower case, ``authorization`` last where a key is named.

    Raises SettingsError when the key is not where the policy says. The message names the place and never the key.
    """
    key = _api_key(replica, environ)
    return replica.headers if key is None else (*replica.headers, ("authorization", f"Bearer {key}"))


def _api_key(replica: ReplicaPolicy, environ: Mapping[str, str]) -> str | None:
    if replica.api_key_env is not None:
        return _sound(environ.get(replica.api_key_env, ""), replica, f"the environment variable {replica.api_key_env}")
    if replica.api_key_file is not None:
        place = f"the file {replica.api_key_file}"
        try:
            text = Path(replica.api_key_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError([f"replica {replica.name}: {place} with its API key cannot be read"]) from error
        return _sound(text, replica, place)
    return None


def _sound(text: str, replica: ReplicaPolicy, place: str) -> str:
    """Return the key without the line end that editors and ``echo`` add."""
    key = text.strip()
    if not key:
        raise SettingsError([f"replica {replica.name}: {place} should hold its API key and is empty or not set"])
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise SettingsError(
            [f"replica {replica.name}: {place} should hold its API key, one word on one line, and holds something else"]
        )
    return key
