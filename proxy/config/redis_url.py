"""Addresses of the shared store as people write them: one server, a socket, sentinels, or a cluster.

What is an address of which kind, its password and its files are read here; ``adapters.redis_link`` connects. A password never shows:
neither in ``repr`` nor in ``shown``, which is what logs and ``/admin/proxies`` tell.
"""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

PORT, SENTINEL_PORT = 6379, 26_379  # Redis' own
POOL = "default"
ALLOWED_REDIS = (
    "redis://[USER:PASSWORD@]HOST[:PORT][/DB], rediss:// for TLS, unix:///PATH/TO.sock, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE"
    " or redis+cluster://HOST:PORT,HOST:PORT (rediss+… for TLS), with ?ca=FILE and ?pool=NAME"
)
_SCHEME = re.compile(r"(redis|rediss)(?:\+(sentinel|cluster))?", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")  # a pool's name stands in keys, between braces
_PARTS = re.compile(r"(?:([^:/?#]+):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?")  # RFC 3986, appendix B
_FORBIDDEN = re.compile(r"[\s\x00-\x1f\x7f]")


class RedisUrlError(ValueError):
    """The address cannot be one of a store; the message is the reason."""


class StoreKind(StrEnum):
    """What stands behind the address."""

    SERVER = "server"
    SOCKET = "socket"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where the shared store is. ``hosts`` are those of the server, the sentinels or the cluster's first nodes."""

    kind: StoreKind
    hosts: tuple[tuple[str, int], ...] = ()
    socket_path: str = ""
    service: str = ""  # what the sentinels call it
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca_path: Path | None = None  # None: the machine's own authorities
    pool: str = POOL  # proxies of one pool share everything, those of two pools nothing

    @property
    def shown(self) -> str:
        """The address without its secret."""
        scheme = "unix" if self.kind is StoreKind.SOCKET else "rediss" if self.tls else "redis"
        suffix = f"+{self.kind}" if self.kind in {StoreKind.SENTINEL, StoreKind.CLUSTER} else ""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        path = self.socket_path or ("/" + self.service if self.service else f"/{self.database}" if self.database else "")
        return f"{scheme}{suffix}://{hosts}{path}"


def store_address(text: str) -> StoreAddress:
    """Read an address. Raises RedisUrlError, whose message never holds a part of it."""
    if _FORBIDDEN.search(text):
        raise RedisUrlError("an address has no spaces or control characters")
    # Not by ``urlsplit``: newer Pythons' wants no bracket behind a comma, which a second host may have.
    match = _PARTS.fullmatch(text)
    if match is None:
        raise RedisUrlError("it is no address")
    scheme_text, netloc, path, query, fragment = (part or "" for part in match.groups())
    if fragment or text.endswith("#"):
        raise RedisUrlError("a # in a password is written %23")
    options = _options(query)
    if scheme_text.lower() == "unix":
        username, password, rest = _credentials(netloc)
        if rest or len(path) < 2:
            raise RedisUrlError("a socket is named by its whole path: three slashes")
        if "ca" in options:
            raise RedisUrlError("a socket has no TLS")
        return StoreAddress(
            StoreKind.SOCKET, (), unquote(path), "", _database(options.get("db", "")), username, password,
            pool=options.get("pool", POOL),
        )  # fmt: skip
    scheme = _SCHEME.fullmatch(scheme_text)
    if scheme is None:
        raise RedisUrlError("the scheme says how the store is spoken to, and it is none of these")
    return _networked(netloc, path.strip("/"), scheme, options)


def _networked(netloc: str, path: str, scheme: re.Match[str], options: dict[str, str]) -> StoreAddress:
    tls = scheme[1].lower() == "rediss"
    kind = StoreKind(scheme[2].lower()) if scheme[2] else StoreKind.SERVER
    username, password, hosts_text = _credentials(netloc)
    port = SENTINEL_PORT if kind is StoreKind.SENTINEL else PORT
    hosts = tuple(_host(one, port) for one in hosts_text.split(","))
    if "ca" in options and not tls:
        raise RedisUrlError("ca is for TLS, which rediss:// asks for")
    service, database = "", 0
    match kind:
        case StoreKind.SENTINEL:
            service, _, number = path.partition("/")
            if not _WORD.fullmatch(service):
                raise RedisUrlError("sentinels are asked for a service by its name, which comes after the hosts")
            database = _database(number)
        case StoreKind.CLUSTER:
            if path:
                raise RedisUrlError("a cluster has no numbered databases")
        case _:
            if len(hosts) > 1:
                raise RedisUrlError("several hosts are sentinels or a cluster, and the scheme must say which")
            database = _database(path)
    ca = options.get("ca")
    return StoreAddress(
        kind, hosts, "", service, database, username, password, tls, Path(ca) if ca else None, options.get("pool", POOL)
    )


def _credentials(netloc: str) -> tuple[str | None, str | None, str]:
    """User, password and what is left."""
    secret, at, rest = netloc.rpartition("@")
    if not at:
        return None, None, rest
    user, colon, password = secret.partition(":")
    if not colon or not password:
        raise RedisUrlError("before the @ stand USER:PASSWORD, or :PASSWORD for the default user")
    return unquote(user) or None, unquote(password), rest


def _host(text: str, port_default: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise RedisUrlError("a port is a number from 1 to 65535") from error
    if not host or port == 0 or parts.path:
        raise RedisUrlError("a host or its port is missing")
    return host, port or port_default


def _database(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise RedisUrlError("a database is a number")
    return int(text)


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    if set(options) - {"ca", "pool", "db"} or not all(options.values()):
        raise RedisUrlError("after the ? stand ca=FILE, pool=NAME, and for a socket db=NUMBER")
    if "pool" in options and not _WORD.fullmatch(options["pool"]):
        raise RedisUrlError("a pool is named by letters, digits and . _ -, at most 64")
    return options
