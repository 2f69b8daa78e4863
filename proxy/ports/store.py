"""What the driver needs of a store that several proxies share: ``core.shared_ledger`` over a wire, and what is exchanged once a beat.

Every call either answers or raises StoreError, none is sent a second time. A reservation never takes longer than the store's time-out;
what no request waits for may take a second.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from proxy.core.exchange import Completion, TenantKey
from proxy.core.grid import FloatArray
from proxy.core.override import Override
from proxy.core.shared import Head, Record, ReserveAsk, ReserveReply, RewriteAsk, RewriteReply
from proxy.core.shared_health import Notice
from proxy.core.tenant_accounts import NO_LEVELS, Levels


class StoreFault(StrEnum):
    """Why the store did not do what it was asked; a metric's label."""

    CONNECTION = "connection"  # not there, or it hung up
    TIMEOUT = "timeout"
    AUTH = "auth"  # it does not take the user and password
    NOPERM = "noperm"  # its ACL forbids a command, a key or a channel
    READONLY = "readonly"  # a replica of the store, or one that lost its disk
    FULL = "full"  # out of memory
    LOADING = "loading"  # it has just started
    NOSCRIPT = "noscript"  # it forgot a script between two calls
    CLUSTER = "cluster"  # slots move, or the cluster is down
    ANSWER = "answer"  # any other error, or an answer that cannot be read


class StoreError(Exception):
    """The store did not do what it was asked, or it is not known whether it did. The message says what helps, where something does."""

    def __init__(self, fault: StoreFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class ProxyCard:
    """One proxy as the others see it."""

    proxy: str
    policy_digest: str
    version: str
    mode: str
    admin: str  # where its /admin is, as itself sees it
    clocks: tuple[tuple[int, float], ...] = ()  # of its queue, by priority (``core.exchange``)
    seen_s: float = 0.0  # when it said so, by the store's clock as it knew it
    health: tuple[Notice, ...] = ()  # of replicas that fail requests (``core.shared_health``)
    levels: Levels = NO_LEVELS  # of tenants that wait there (``core.tenant_accounts``)


class KeptResponse(NamedTuple):
    """Where a response lives that an engine keeps, and the tokens of its conversation, prompt and output; 0 while it runs."""

    response_id: str
    replica: str  # a server
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Beat:
    """What a proxy tells the others: what it charged and who ended since its last beat that was answered."""

    card: ProxyCard
    charges: Mapping[TenantKey, float] = field(default_factory=dict)  # in virtual token-time
    completions: Sequence[Completion] = ()
    completions_seen: str = ""  # up to where those of others were read; "": nothing yet
    responses: Sequence[KeptResponse] = ()
    responses_seen: str = ""  # likewise


@dataclass(frozen=True, slots=True)
class BeatReply:
    """What the others told. ``overrides`` are those in force, their times the store's; none: each proxy goes by its policy."""

    store_s: float
    proxies: tuple[ProxyCard, ...]
    period: int  # ``accounts`` begin anew with each
    accounts: Mapping[TenantKey, float]  # charged by all proxies together in this period
    completions: tuple[Completion, ...]
    completions_seen: str
    overrides: tuple[Override, ...] = ()
    responses: tuple[KeptResponse, ...] = ()  # the oldest first
    responses_seen: str = ""
    unread: int = 0  # words that no proxy can have told: passed over


class StorePhase(StrEnum):
    """How a proxy stands with the store."""

    SHARING = "sharing"
    DEGRADED = "degraded"  # out of touch: every replica is filled to this proxy's own share
    RECOVERING = "recovering"  # it answers again, but rows are missing: ours, or those it lost


@dataclass(frozen=True, slots=True)
class StoreState:
    """How a proxy stands with the store, for metrics and people. Totals count since the start."""

    shown: str
    phase: StorePhase
    phase_age_s: float
    proxies: tuple[ProxyCard, ...]  # this one included, as last heard
    policies_differing: int  # of them, with another policy or version than ours
    errors: dict[str, int]  # by fault
    refused: dict[str, int]  # reservations, by answer
    granted: int
    granted_ahead: int  # reservations out of room that was taken ahead
    ahead_refused: int  # calls for such room
    ahead_blocks: float  # that stand ahead, by their expected blocks
    granted_apart: int  # reservations that the store was not asked for
    unanswered: int
    rewrites: int
    offers_made: int
    offers_claimed: int
    offers_passed: int
    outages: int
    holds: dict[str, bool]  # by replica: whether we scrape it
    clock_offset_s: float
    round_trip_s: float  # of the reading of the offset in use
    last_error: str | None


class ScrapeTurns(Protocol):
    """Who scrapes a replica, where several proxies share it. ``replicas`` are the names that the gate knows one server by."""

    def ours(self, replicas: Sequence[str]) -> bool:
        """Whether we are to scrape it now."""
        ...

    def scraped(self, replicas: Sequence[str]) -> None:
        """We did, and the gate has been told."""
        ...


class SharedStore(Protocol):
    """One pool of proxies. Methods are those of ``core.shared_ledger``; every one raises StoreError."""

    @property
    def shown(self) -> str:
        """Where it is, without secrets."""
        ...

    async def register(self, proxy: str) -> int:
        """A new epoch."""
        ...

    async def time_s(self) -> float:
        """The store's clock."""
        ...

    async def reserve(self, ask: ReserveAsk) -> ReserveReply:
        """Check one request and commit it."""
        ...

    async def rewrite_all(self, asks: Sequence[RewriteAsk]) -> list[RewriteReply]:
        """Write rows anew, each a step by itself."""
        ...

    async def publish(self, record: Record, ends: FloatArray, scrape_lease_s: float) -> bool:
        """Publish a replica's record; False: another proxy may."""
        ...

    async def set_heads(self, proxy: str, replica: str, heads: Sequence[Head]) -> None:
        """Put a proxy's heads on a replica in the place of those before."""
        ...

    async def forget(self, proxy: str, replicas: Sequence[str]) -> None:
        """A proxy leaves."""
        ...

    async def drop(self, proxy: str, replicas: Sequence[str]) -> None:
        """These replicas are none of a proxy's any more. Left alone, its rows there would expire, and the proxy be given up with them."""
        ...

    async def exchange(self, beat: Beat) -> BeatReply:
        """Tell and hear what is not needed on the way of a request."""
        ...

    async def override(self, said: Override) -> None:
        """Tell all proxies what was said by hand, in the place of what was said of the same subject; its time is the store's."""
        ...

    def offers(self, proxy: str) -> AsyncIterator[str]:
        """Names of replicas whose room was offered to this proxy's heads, as they come; ends by StoreError."""
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...
