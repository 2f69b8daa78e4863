"""What a proxy asks of the store that it shares with others; each call says what its answer is."""

from dataclasses import dataclass

from proxy.core.grid import FloatArray
from proxy.core.lease import Lease
from proxy.core.shared import Head, Record, ReserveAsk, ReserveReply, RewriteAsk, RewriteReply


@dataclass(frozen=True, slots=True)
class CallRegister:
    """Answer: the proxy's epoch."""

    proxy: str

    @property
    def key(self) -> str:
        """What it is about."""
        return self.proxy


@dataclass(frozen=True, slots=True)
class CallReserve:
    """Answer: ReserveReply."""

    ask: ReserveAsk
    request_id: str
    lease: Lease

    @property
    def key(self) -> str:
        """What it is about."""
        return self.request_id


@dataclass(frozen=True, slots=True)
class CallAdvance:
    """Answer: ReserveReply. Room for requests that have not come yet (``core.ahead``)."""

    ask: ReserveAsk

    @property
    def key(self) -> str:
        """What it is about."""
        return self.ask.replica


@dataclass(frozen=True, slots=True)
class CallRewrite:
    """Answer: RewriteReply. ``changes`` is the ledger's count of changes that the row includes."""

    ask: RewriteAsk
    changes: int

    @property
    def key(self) -> str:
        """What it is about."""
        return self.ask.replica


@dataclass(frozen=True, slots=True)
class CallPublish:
    """Answer: whether the proxy holds the replica's record. ``ends`` are those of the replica's grid."""

    record: Record
    ends: FloatArray
    scrape_lease_s: float

    @property
    def key(self) -> str:
        """What it is about."""
        return self.record.replica


@dataclass(frozen=True, slots=True)
class CallHeads:
    """Answer: None. In the place of the heads that the proxy published on the replica before."""

    proxy: str
    replica: str
    heads: list[Head]

    @property
    def key(self) -> str:
        """What it is about."""
        return self.replica


StoreCall = CallRegister | CallReserve | CallAdvance | CallRewrite | CallPublish | CallHeads
StoreReply = int | bool | ReserveReply | RewriteReply | None
