"""A proxy among several, as its member and gate are, at a ledger that answers at once."""

from dataclasses import dataclass, field

from proxy.core.events import Event, ReplicaFound, Reserve
from proxy.core.gate import Gate
from proxy.core.lease import Lease
from proxy.core.member import Member
from proxy.core.policy import Policy
from proxy.core.replica import ReplicaSpec
from proxy.core.shared import Load, Rank, row_of
from proxy.core.shared_ledger import SharedLedger
from proxy.core.store_calls import StoreCall, StoreReply
from proxy.sim.shared_store import answer
from tests.support.builders import demand

POLICY = Policy()
SPEC = ReplicaSpec("r0", ("m",), 100, 16, 4096)
BEAT_S = POLICY.store.rewrite_s
STORE_AHEAD_S = 1000.0  # the store's clock is far from ours


@dataclass
class Side:
    """A proxy at a ledger that answers at once, unless it is ``deaf``."""

    ledger: SharedLedger
    name: str
    deaf: bool = False
    spec: ReplicaSpec = SPEC
    policy: Policy = POLICY
    told: list[Event] = field(default_factory=list)
    called: list[StoreCall] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate = Gate(self.policy, 0.0)
        self.member = Member(self.gate, self.name, self.policy, 0.0)
        self.gate.handle(ReplicaFound(self.spec), 0.0)

    def answer(self, call: StoreCall, store_s: float) -> StoreReply:
        return answer(self.ledger, call, store_s)

    def carry(self, now_s: float) -> list[Event]:
        told: list[Event] = []
        while calls := self.member.take_calls():
            self.called += calls
            for call in calls:
                if self.deaf:
                    told += self.member.failed(call, asked_s=now_s, now_s=now_s + POLICY.store.timeout_s)
                else:
                    store_s = now_s + STORE_AHEAD_S
                    reply = self.answer(call, store_s)
                    told += self.member.answered(call, reply, store_s=store_s, asked_s=now_s, now_s=now_s)
        for event in told:
            self.gate.handle(event, now_s)
        self.told += told
        return told

    def beats(self, from_s: float, count: int) -> float:
        """So many beats; returns when the next one is due."""
        for number in range(count):
            self.member.beat(from_s + number * BEAT_S)
            self.carry(from_s + number * BEAT_S)
        return from_s + count * BEAT_S

    def reserve(self, name: str, blocks: float, now_s: float) -> list[Event]:
        book = self.gate.fleet.books["r0"]
        curves = book.ledger.own() * 0.0
        curves[0] = curves[2] = blocks
        lease = Lease(f"{name}.0", demand(name), "r0", 100, now_s, book.steps_now(now_s))
        effect = Reserve(name, lease, row_of(Load(leases=1.0, sequences=1.0), curves), Rank(0.0, 0.0, 0.0))
        return self.member.reserve(effect, now_s) + self.carry(now_s)
