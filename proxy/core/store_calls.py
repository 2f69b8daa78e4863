"""What a proxy asks of the store that it shares with others; each call says what its answer is."""

from dataclasses import dataclass

from proxy.core.grid import FloatArray
from proxy.core.lease import Lease
from proxy.core.shared import Head, Record, ReserveAsk, ReserveReply, RewriteAsk, RewriteReply


@dataclass(frozen=True, slots=True)
class CallRegister:
    """Answer: the proxy's epoch."""

    proxy: str


@dataclass(frozen=True, slots=True)
class CallReserve:
    """Answer: ReserveReply."""

    ask: ReserveAsk
    request_id: str
    lease: Lease


@dataclass(frozen=True, slots=True)
class CallRewrite:
    """Answer: RewriteReply. ``changes`` is the ledger's count of changes that the row includes."""

    ask: RewriteAsk
    changes: int


@dataclass(frozen=True, slots=True)
class CallPublish:
    """Answer: whether the proxy holds the replica's record. ``ends`` are those of the replica's grid."""

    record: Record
    ends: FloatArray
    scrape_lease_s: float


@dataclass(frozen=True, slots=True)
class CallHeads:
    """Answer: None. In the place of the heads that the proxy published on the replica before."""

    proxy: str
    replica: str
    heads: list[Head]


StoreCall = CallRegister | CallReserve | CallRewrite | CallPublish | CallHeads
StoreReply = int | bool | ReserveReply | RewriteReply | None
