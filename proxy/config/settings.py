"""Settings of one process: flags first, then ``KVGATE_…`` variables, then defaults. And how they and the policy come together.

A policy says how requests are treated and is shared by all proxies; settings say where this process listens and what it reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from proxy.config.admin_token import VARIABLE as ADMIN_TOKEN
from proxy.config.admin_token import AdminTokenError, admin_token
from proxy.config.faults import did_you_mean, quoted
from proxy.config.policy_file import default_path, load
from proxy.config.redis_url import ALLOWED_REDIS, RedisUrlError, StoreAddress, store_address
from proxy.config.replica_url import ALLOWED, ReplicaUrlError, normal_url
from proxy.config.schema_replicas import replica_name
from proxy.core.policy import Policy, ReplicaPolicy

VARIABLES: Mapping[str, str] = {
    "replica": "KVGATE_REPLICAS",
    "policy": "KVGATE_POLICY",
    "host": "KVGATE_HOST",
    "port": "KVGATE_PORT",
    "admin_host": "KVGATE_ADMIN_HOST",
    "admin_port": "KVGATE_ADMIN_PORT",
    "admin_token_file": "KVGATE_ADMIN_TOKEN_FILE",
    "tokenizer": "KVGATE_TOKENIZER",
    "redis": "KVGATE_REDIS",
    "workers": "KVGATE_WORKERS",
    "kv_blocks": "KVGATE_KV_BLOCKS",
    "log_level": "KVGATE_LOG_LEVEL",
    "log_format": "KVGATE_LOG_FORMAT",
}
"""Flag (its ``argparse`` name) to the variable that stands in for it."""


PORT_MAX = 65_535
HOST = "0.0.0.0"  # noqa: S104  a proxy is there to be reached
ADMIN_HOST = "127.0.0.1"  # metrics and switches are for the inside


E = TypeVar("E", bound=StrEnum)


class LogLevel(StrEnum):
    """What the log keeps."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a line of the log is written."""

    JSON = "json"
    CONSOLE = "console"


class SettingsError(ValueError):
    """Settings that cannot be used; ``faults`` are one-line sentences, one for each."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(faults))


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """What ``kvgate serve`` runs with. A port of 0 is any free one."""

    replica_urls: tuple[str, ...] = ()
    policy_path: Path | None = None  # None: the shipped default
    host: str = HOST
    port: int = 8080
    admin_host: str = ADMIN_HOST
    admin_port: int = 8081
    admin_token: str | None = field(default=None, repr=False)  # None: nobody can change anything there
    tokenizer: str | None = None
    store: StoreAddress | None = None  # None: this process is the only one before its replicas
    workers: int = 1
    kv_blocks: int | None = None
    log_level: LogLevel = LogLevel.INFO
    log_format: LogFormat | None = None  # None: as whoever reads it needs, a terminal or a program


class _Source:
    """Looks a setting up in the flags, then in the environment, and notes what is wrong with it."""

    def __init__(self, flags: Mapping[str, object], environ: Mapping[str, str]) -> None:
        self._flags = flags
        self._environ = environ
        self.faults: list[str] = []

    def words(self, name: str) -> tuple[str, list[str]]:
        """Return where the setting came from and its values; no values when it is not set."""
        flag = self._flags.get(name)
        if flag is not None:
            values = flag if isinstance(flag, list) else [flag]
            return "--" + name.replace("_", "-"), [str(value) for value in values]
        variable = VARIABLES[name]
        text = self._environ.get(variable, "")
        if name == "port" and text.startswith("tcp://"):
            return variable, []  # Kubernetes sets KVGATE_PORT=tcp://… for a Service named kvgate; it is no wish of anybody
        return variable, text.replace(",", " ").split() if name == "replica" else [text] if text else []

    def text(self, name: str) -> str | None:
        """Return a word, None when it is not set."""
        return next(iter(self.words(name)[1]), None)

    def integer(self, name: str, default: int | None, least: int, most: int, because: str) -> int | None:
        """Return a whole number within bounds."""
        origin, values = self.words(name)
        if not values:
            return default
        text = values[0]
        if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
            self.faults.append(f"{origin}: got {quoted(text)}; allowed a whole number from {least} to {most}; because {because}")
            return default
        return int(text)

    def urls(self) -> tuple[str, ...]:
        """Return the replicas' addresses, each once."""
        origin, values = self.words("replica")
        found: list[str] = []
        for text in values:
            try:
                found.append(normal_url(text))
            except ReplicaUrlError as error:
                shown = "an address not shown here" if "@" in text else quoted(text)
                self.faults.append(f"{origin}: got {shown}; allowed {ALLOWED}; because {error}")
        return tuple(dict.fromkeys(found))

    def store(self) -> StoreAddress | None:
        """Return the shared store's address; what was got is not shown, for it may hold a password."""
        origin, values = self.words("redis")
        if not values:
            return None
        try:
            return store_address(values[0])
        except RedisUrlError as error:
            self.faults.append(f"{origin}: got an address not shown here; allowed {ALLOWED_REDIS}; because {error}")
            return None

    def admin_token(self) -> str | None:
        """Return what changes under /admin ask for."""
        origin, values = self.words("admin_token_file")
        try:
            return admin_token(Path(values[0]) if values else None, self._environ)
        except AdminTokenError as error:
            name = origin if values else ADMIN_TOKEN
            self.faults.append(f"{name}: {error}; because who knows it can switch kvgate off")
            return None

    def one_of(self, name: str, allowed: type[E], because: str) -> E | None:
        """Return one of few words, None where it is not set."""
        origin, values = self.words(name)
        words = [word.value for word in allowed]
        if not values:
            return None
        if values[0].lower() not in words:
            got = quoted(values[0]) + did_you_mean(values[0], words)
            self.faults.append(f"{origin}: got {got}; allowed {', '.join(words)}; because {because}")
            return None
        return allowed(values[0].lower())


def read_settings(flags: Mapping[str, object], environ: Mapping[str, str]) -> ServeSettings:
    """Return the settings; ``flags`` is what argparse found, None where a flag was not given. Raises SettingsError with all faults."""
    source = _Source(flags, environ)
    policy = source.text("policy")
    settings = ServeSettings(
        replica_urls=source.urls(),
        policy_path=Path(policy) if policy else None,
        host=source.text("host") or HOST,
        port=source.integer("port", 8080, 0, PORT_MAX, "it is a TCP port") or 0,
        admin_host=source.text("admin_host") or ADMIN_HOST,
        admin_port=source.integer("admin_port", 8081, 0, PORT_MAX, "it is a TCP port") or 0,
        admin_token=source.admin_token(),
        tokenizer=source.text("tokenizer"),
        store=source.store(),
        workers=source.integer("workers", 1, 1, 1024, "each is a process") or 1,
        kv_blocks=source.integer("kv_blocks", None, 2, 100_000_000, "one block is the engine's null block, so two are the least"),
        log_level=source.one_of("log_level", LogLevel, "the log knows no other level") or LogLevel.INFO,
        log_format=source.one_of("log_format", LogFormat, "the log is written in no other way"),
    )
    faults = source.faults + _together(settings, shared=settings.store is not None or bool(source.words("redis")[1]))
    if faults:
        raise SettingsError(faults)
    return settings


def _together(settings: ServeSettings, *, shared: bool) -> list[str]:
    """Return what is wrong with the settings as a whole. ``shared``: an address of a store was given, right or wrong."""
    faults = []
    if settings.workers > 1 and not shared:
        because = "workers would each fill the same KV cache without knowing of the others"
        faults.append(f"--workers: got {settings.workers}; allowed 1, or --redis URL; because without shared state {because}")
    first, last = settings.admin_port, settings.admin_port + settings.workers - 1
    if first != 0 and first <= settings.port <= last:
        got = (
            f"{first}, which is --port"
            if first == last
            else f"{first} to {last} for {settings.workers} workers, one of them --port"
        )
        faults.append(f"--admin-port: got {got}; allowed another port; because both are listened on")
    if last > PORT_MAX:
        faults.append(
            f"--admin-port: got {first} to {last} for {settings.workers} workers; allowed up to {PORT_MAX}; because each has its own"
        )
    return faults


def unread_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each ``KVGATE_…`` variable that looks like a misspelling of one that is read."""
    sentences = []
    read = (*VARIABLES.values(), ADMIN_TOKEN)
    for name in sorted(environ):
        if name.startswith("KVGATE_") and name not in read:
            close = get_close_matches(name, read, n=1, cutoff=0.85)
            sentences += [f"{name} is not read (did you mean {close[0]}?)"] if close else []
    return sentences


def merged(policy: Policy, settings: ServeSettings) -> Policy:
    """Return the policy with what flags and variables say on top of it.

    Addresses given there replace the file's list; a replica that the file has under the same address keeps its other keys.
    ``kv_blocks`` holds for every replica.
    """
    known = {replica.url: replica for replica in policy.replicas}
    replicas = policy.replicas
    if settings.replica_urls:
        replicas = tuple(known.get(url) or ReplicaPolicy(url=url, name=replica_name(url)) for url in settings.replica_urls)
    if settings.kv_blocks is not None:
        replicas = tuple(replace(replica, kv_blocks=settings.kv_blocks) for replica in replicas)
    return replace(policy, replicas=replicas, tokenizer=settings.tokenizer or policy.tokenizer)


def effective_policy(settings: ServeSettings) -> Policy:
    """Return the policy that a process runs with: its file, or the shipped default, under the settings.

    Raises PolicyError for the file, SettingsError where no replica is named anywhere.
    """
    return policy_under(load(policy_file(settings)), settings)


def policy_file(settings: ServeSettings) -> Path:
    """Return where the policy of a process stands."""
    return settings.policy_path or default_path()


def policy_under(policy: Policy, settings: ServeSettings) -> Policy:
    """Return what a process runs with whose file says ``policy``. Raises SettingsError where no replica is named anywhere."""
    policy = merged(policy, settings)
    if not policy.replicas and not policy.discovery.on:
        raise SettingsError(
            [
                "no replica to forward to: give --replica URL, set KVGATE_REPLICAS, or name replicas: or discovery: in the policy file"
            ]
        )
    return policy
