"""One proxy of several over one store, in virtual time: the gate and the ``Member`` that also serve, with a ``StoreLink`` for the network.

Decides nothing: it carries calls to the ledger of ``sim.shared_store`` and answers back, keeps the member's time, and hands a scrape to the
gate where the member says that it is this proxy's to take.
"""

from collections.abc import Sequence
from functools import partial

from proxy.core.events import Effect, Offered, Release, Reserve
from proxy.core.member import Member
from proxy.core.policy import Policy
from proxy.core.replica import ReplicaSample, ReplicaSpec
from proxy.core.store_calls import StoreCall, StoreReply
from proxy.sim.admission import GateAdmission, Ways
from proxy.sim.board import BeatReply, Teller
from proxy.sim.shared_store import SharedStore

GOLDEN_RATIO = 0.618


class SharedProxy(GateAdmission):
    """One gate over the shared store, ``index`` of its world's proxies."""

    def __init__(
        self, index: int, shared: SharedStore, policy: Policy, *, oracle: bool = False, spared: frozenset[str] = frozenset(),
        begun_s: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(policy, oracle=oracle, spared=spared, begun_s=begun_s)
        self._shared = shared
        name, self.link = shared.connect(index, self)
        self.member = Member(self.gate, name, policy, begun_s)
        self._teller = Teller(name, self.member.several.exchange, policy.store.lease_s)
        self._phase = (index * GOLDEN_RATIO) % 1.0  # beats of different proxies do not fall together
        self._store = policy.store
        self._beat_s = float("inf")

    def __repr__(self) -> str:
        """State for people and tests."""
        return f"<SharedProxy {self.member!r} {self.link!r} {self.gate!r}>"

    def start(self, world: Ways, replicas: Sequence[ReplicaSpec]) -> None:
        """Tell the gate of the replicas; the first beat registers."""
        super().start(world, replicas)
        self.member.due_s = world.now_s + self._phase * self._store.rewrite_s
        self._set_beat()
        world.at(world.now_s + self._phase * self._store.beat_s, self._exchange)

    def die(self) -> None:
        """It is gone; calls on their way arrive at the store, answers to it nowhere."""
        super().die()
        self.link.alive = False

    def offered(self, replica: str) -> None:
        """The store holds room there for one of our heads."""
        self._feed(Offered(replica))

    def observe(self, sample: ReplicaSample) -> None:
        """Take in a scrape where it is ours to take."""
        if self.member.scrapes(sample.replica, self._world.now_s):
            super().observe(sample)
            self.member.scraped(sample.replica, self._world.now_s)
            self._make_calls()

    def _carry_out(self, effects: list[Effect]) -> None:
        super()._carry_out(effects)
        for effect in effects:
            if isinstance(effect, Release):
                self.member.freed(effect.replica, self._world.now_s)
        self.member.waiting(self._world.now_s)
        self._set_beat()

    def _reserve(self, effect: Reserve) -> None:
        events = self.member.reserve(effect, self._world.now_s)
        if events and self.member.touch.sharing and effect.row is not None:
            self._shared.granted_ahead(effect.lease)
        for event in events:
            self._feed(event)
        self._make_calls()

    # ---- calls and beats

    def _make_calls(self) -> None:
        for call in self.member.take_calls():
            self._make(call)

    def _make(self, call: StoreCall) -> None:
        asked_s = self._world.now_s

        def there(store_s: float) -> tuple[StoreReply, float]:
            return self._shared.answer(call, store_s), store_s

        def answered(word: tuple[StoreReply, float]) -> None:
            reply, store_s = word
            now_s = self._world.now_s
            for event in self.member.answered(call, reply, store_s=store_s, asked_s=asked_s, now_s=now_s):
                self._feed(event)
            self._make_calls()
            self._set_beat()

        def failed() -> None:
            for event in self.member.failed(call, asked_s=asked_s, now_s=self._world.now_s):
                self._feed(event)
            self._make_calls()

        self.link.call(there, answered, failed)

    def _set_beat(self) -> None:
        due_s = self.member.due_s
        if due_s < self._beat_s:
            self._beat_s = due_s
            self._world.at(due_s, partial(self._beat, due_s))

    def _beat(self, due_s: float) -> None:
        if self.link.alive and self._beat_s == due_s:  # else an earlier one came in between
            self._beat_s = float("inf")
            self.member.beat(self._world.now_s)
            self._make_calls()
            self._set_beat()

    def _exchange(self) -> None:
        if not self.link.alive:
            return
        beat = self._teller.beat()

        def answered(reply: BeatReply) -> None:
            self._teller.told(beat, reply, self._world.now_s)
            self.member.proxies = self.gate.shares.proxies = self._teller.proxies

        self.link.call(partial(self._shared.board.exchange, beat), answered)
        self._world.at(self._world.now_s + self._store.beat_s, self._exchange)
