"""Policy files: read, checked as a whole, and turned into a :class:`proxy.core.policy.Policy`.

``review`` and ``parse`` are pure; ``read`` and ``load`` read a file. What raises PolicyError raises it with every fault of the file, in
its order.
"""

from dataclasses import dataclass
from pathlib import Path

from proxy.config.contradictions import find_contradictions
from proxy.config.faults import Fault, PolicyError, UnreadableError
from proxy.config.nodes import FILE_BYTES_MAX, Faults, compose
from proxy.config.schema import POLICY
from proxy.config.secrets import find_secrets
from proxy.core.policy import Policy

SCHEMA_FILE = "policy.schema.json"  # built by config.json_schema
_BESIDE = Path(__file__).parent  # inside a wheel
_CHECKOUT = Path(__file__).parent.parent.parent / "policies"


@dataclass(frozen=True, slots=True)
class Review:
    """What is to be said of a file: the policy unless there are ``faults``, and the warnings, in the file's order."""

    policy: Policy | None
    faults: tuple[Fault, ...]
    warnings: tuple[Fault, ...]


def default_path() -> Path:
    """Return where the shipped default policy is."""
    return shipped_path("default.yaml")


def shipped_path(name: str) -> Path:
    """Return where a shipped file is: in the wheel, else in the checkout."""
    return _BESIDE / name if (_BESIDE / name).exists() else _CHECKOUT / name


def review(text: str, file: str) -> Review:
    """Return everything that is to be said of ``text``; ``file`` names it."""
    faults = Faults(file)
    root = compose(text, faults)
    policy: Policy | None = None
    if root is not None:
        policy = POLICY.value(root, "", "a policy is a map at its top", faults)
        find_secrets(root, faults)
        if policy is not None:
            find_contradictions(policy, root, faults)
    return Review(None if faults.found else policy, tuple(faults.in_order()), tuple(faults.warnings()))


def parse(text: str, file: str) -> Policy:
    """Return the policy that ``text`` describes; ``file`` names it in faults. Raises PolicyError."""
    found = review(text, file)
    if found.policy is None:
        raise PolicyError(found.faults)
    return found.policy


def load(path: Path) -> Policy:
    """Read a policy file. Raises PolicyError, also when the file cannot be read."""
    return parse(read(path), str(path))


def read(path: Path) -> str:
    """Return the text of a policy file. Raises UnreadableError."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
        return raw.decode("utf-8-sig")
    except OSError as error:
        reason = (error.strerror or "it cannot be read").lower()
        raise UnreadableError(
            [_unreadable(path, f"a file that cannot be opened ({reason})", "a policy is read at start")]
        ) from error
    except UnicodeDecodeError as error:
        got = f"a byte that is no UTF-8 at offset {error.start}"
        raise UnreadableError([_unreadable(path, got, "YAML is UTF-8 text: is it the right file?")]) from error


def _unreadable(path: Path, got: str, because: str) -> Fault:
    return Fault(str(path), 0, 0, "file", got, "a readable UTF-8 file", because)
