"""Readers of flag values that several commands take."""

import argparse
import os
from collections.abc import Callable, Mapping

from proxy.config.faults import quoted
from proxy.config.replica_url import ALLOWED, ReplicaUrlError, normal_url
from proxy.config.scalars import RefusedError, Scalar, duration
from proxy.config.settings import SettingsError

SLO_KEYS = ("ttft", "tpot", "e2e")
_LATENCY = duration("1ms", "1h")


def scalar(kind: Scalar) -> Callable[[str], float]:
    """A reader of the policy file's as one of a flag."""

    def read(text: str) -> float:
        try:
            return float(kind.read(text))
        except RefusedError as error:
            raise argparse.ArgumentTypeError(f"got {quoted(text)}{error}; allowed {kind.allowed}") from error

    return read


def base_url(text: str) -> str:
    """A server's address."""
    try:
        return normal_url(text)
    except ReplicaUrlError as error:
        raise argparse.ArgumentTypeError(f"got {quoted(text)}; allowed {ALLOWED}: {error}") from error


def slo(text: str) -> dict[str, float]:
    """``ttft=2s,tpot=50ms,e2e=30s``, any of them, in seconds."""
    found = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key not in SLO_KEYS:
            raise argparse.ArgumentTypeError(
                f"got {quoted(part)}; allowed ttft=TIME, tpot=TIME and e2e=TIME, separated by commas"
            )
        found[key] = scalar(_LATENCY)(value)
    return found


def authorization(variable: str | None) -> Mapping[str, str]:
    """The header that carries the API key of that environment variable. Raises SettingsError when it holds none."""
    if variable is None:
        return {}
    key = os.environ.get(variable, "").strip()
    if not key:
        raise SettingsError(
            [f"--api-key-env: the environment variable {variable} should hold the API key and is empty or not set"]
        )
    return {"authorization": f"Bearer {key}"}
