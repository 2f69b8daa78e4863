"""What happens to the gate, and what it asks its driver to do.

Events go in with the time; effects come out and are carried out afterwards. "Hold" is no effect at all.
"""

from dataclasses import dataclass, field

from proxy.core.considered import Considered
from proxy.core.demand import Demand
from proxy.core.grid import FloatArray
from proxy.core.health import SlowStart
from proxy.core.lease import Lease
from proxy.core.outcome import Outcome, Refusal
from proxy.core.replica import ReplicaPhase, ReplicaSample, ReplicaSpec
from proxy.core.shared import Answer, Level, Others, Rank, Record


@dataclass(frozen=True, slots=True)
class ReplicaFound:
    """A replica was probed, or its facts changed: it can be admitted to, unless it is in a ``phase`` that says otherwise.

    ``slow_start`` as for ``ReplicaChanged``.
    """

    spec: ReplicaSpec
    phase: ReplicaPhase = ReplicaPhase.SERVING
    slow_start: SlowStart | None = None


@dataclass(frozen=True, slots=True)
class ReplicaChanged:
    """A replica went to another phase. ``slow_start`` bounds what it has at a time, from now on; None: it need not be spared."""

    replica: str
    phase: ReplicaPhase
    slow_start: SlowStart | None = None


@dataclass(frozen=True, slots=True)
class Arrive:
    """A request asks for a place."""

    demand: Demand
    streaming: bool = False


@dataclass(frozen=True, slots=True)
class Granted:
    """The store committed a reservation."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The store did not commit a reservation. ``answer`` says why, where several proxies share the replicas: the request keeps its place
    and that replica is not tried again for ``retry_s``. None: the store cannot take it there at all, and the next replica is tried.
    """

    request_id: str
    answer: Answer | None = None
    retry_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PeersTold:
    """What other proxies have on a replica, as the store had it; ``steps_now`` is where the replica's shared step clock stands now."""

    others: Others
    steps_now: float


@dataclass(frozen=True, slots=True)
class RecordTold:
    """The record of a replica that another proxy scrapes; ``store_s`` is the store's clock now."""

    record: Record
    store_s: float


@dataclass(frozen=True, slots=True)
class Offered:
    """Room came free on a replica for one who waits here, for whom the store holds it for a moment."""

    replica: str


@dataclass(frozen=True, slots=True)
class Observed:
    """A replica was scraped."""

    sample: ReplicaSample


@dataclass(frozen=True, slots=True)
class CacheTold:
    """A replica told what entered and left its prefix cache, by our own block hashes; ``cleared`` comes before both."""

    replica: str
    stored: tuple[int, ...]
    removed: tuple[int, ...]
    cleared: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """A forwarded request ended. ``output_tokens`` counts over all its sequences; ``natural`` is True when the model ended them all."""

    request_id: str
    outcome: Outcome
    output_tokens: int | None = None
    natural: bool = False


@dataclass(frozen=True, slots=True)
class Reroute:
    """A replica failed a forwarded request before the first byte: place it anew, elsewhere."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A waiting request's client went away."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True, slots=True)
class ReplicaGone:
    """A replica is none of ours any more: nothing is left of it. Requests that still run there go on without a place."""

    replica: str


StoreEvent = PeersTold | RecordTold | Offered
RequestEvent = Granted | Refused | Reroute | Cancelled | Finished
ReplicaEvent = Observed | ReplicaFound | ReplicaChanged | ReplicaGone
Event = Arrive | RequestEvent | ReplicaEvent | StoreEvent | CacheTold | Tick


@dataclass(frozen=True, slots=True)
class Reserve:
    """Commit this lease in the store, then report Granted or Refused. ``row`` is what it adds, from now on (``core.shared.row_of``), and
    ``rank`` its place among all who wait: both only where several proxies share the replicas.
    """

    request_id: str
    lease: Lease
    row: FloatArray | Level | None = field(default=None, compare=False)
    rank: Rank | None = None


@dataclass(frozen=True, slots=True)
class Forward:
    """Send the request to the lease's replica."""

    request_id: str
    lease: Lease


@dataclass(frozen=True, slots=True)
class Shed:
    """Answer the request without forwarding it. ``considered`` is what was seen of the replicas; None where nothing had to be."""

    request_id: str
    refusal: Refusal
    considered: Considered | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Release:
    """The lease ended: tell the store."""

    replica: str
    lease_id: str


Effect = Reserve | Forward | Shed | Release
