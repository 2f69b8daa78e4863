"""A request's place from where it is asked for to its end, as whoever sends the request sees it (``serving.dispatcher`` gives it)."""

from typing import TYPE_CHECKING, NamedTuple

from proxy.core.considered import Considered
from proxy.core.demand import Demand
from proxy.core.events import Arrive, Finished, Reroute
from proxy.core.ledger import Lease
from proxy.core.outcome import Outcome, Refusal
from proxy.core.retrying import may_go_on
from proxy.ports import ClientLink, Receive

if TYPE_CHECKING:
    from proxy.serving.dispatcher import Dispatcher


class ShedError(Exception):
    """The gate refused the request; ``refusal`` says why and when to come back, ``considered`` what was seen of the replicas."""

    def __init__(self, refusal: Refusal, considered: Considered | None = None) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.considered = considered


class ClientGoneError(Exception):
    """The client left while its request waited; ``considered`` is what was seen of the replicas until then."""

    considered: Considered | None = None


class Client(NamedTuple):
    """What tells that the client left: the server's ``link`` by a call, else a message of ``receive``."""

    receive: Receive
    link: ClientLink | None = None


class Admission:
    """A granted place. The bracket's owner reports how it went with ``finish``; unreported, it counts as an internal end."""

    __slots__ = ("_client", "_dispatcher", "finished", "lease", "reroutes", "tried", "waited_s")

    def __init__(self, dispatcher: "Dispatcher", lease: Lease, waited_s: float, client: Client) -> None:
        self.lease = lease
        self._client = client
        self.waited_s = waited_s
        self.reroutes = 0
        self.tried = frozenset((dispatcher.gate.fleet.server_of(lease.replica),))
        self.finished: Finished | None = None
        self._dispatcher = dispatcher

    def progress(self, output_tokens: int) -> None:
        """The stream shows ``output_tokens`` so far: the lease is placed and that long."""
        if not self.lease.placed:
            self.lease.placed, self.lease.placed_s = True, self._dispatcher.clock.now_s()
        self.lease.output_tokens = output_tokens

    def finish(self, outcome: Outcome, output_tokens: int | None, *, natural: bool) -> None:
        """Say how the request ended; takes effect when the bracket is left."""
        self.finished = Finished(self.lease.demand.request_id, outcome, output_tokens, natural)

    @property
    def untried(self) -> bool:
        """Whether a replica could take it that was not asked yet, so that this one's refusal need not be the client's answer."""
        gate, demand = self._dispatcher.gate, self.lease.demand
        return self.reroutes < gate.shedding.reroutes_max and gate.fleet.could_take(demand, self.tried | demand.kept_from)

    @property
    def may_go_on(self) -> bool:
        """Whether the gate would place it anew after this replica's failure."""
        gate, demand = self._dispatcher.gate, self.lease.demand
        if self.reroutes >= gate.shedding.reroutes_max:
            return False
        return may_go_on(
            gate.fleet, demand, self.tried, gate.fleet.server_of(self.lease.replica), held=gate.enforces(demand.tenant)
        )

    async def reroute(self) -> None:
        """The replica failed it before the first byte: wait for a place on another. Raises ShedError."""
        self.reroutes += 1
        request_id = self.lease.demand.request_id
        self.lease = await self._dispatcher.place(Reroute(request_id), request_id, self._client)
        self.tried |= {self._dispatcher.gate.fleet.server_of(self.lease.replica)}


class Bracket:
    """What ``async with`` goes through: a place within it, and its end behind it. By hand: ``enter``, where that gives nothing
    ``entered``, and ``leave``.
    """

    __slots__ = ("_admission", "_client", "_demand", "_dispatcher", "_streaming")

    def __init__(self, dispatcher: "Dispatcher", demand: Demand, client: Client, *, streaming: bool) -> None:
        self._dispatcher = dispatcher
        self._demand = demand
        self._client = client
        self._streaming = streaming

    def enter(self) -> Admission | None:
        """Ask for a place; None where it is to be waited for. Raises ShedError."""
        lease = self._dispatcher.ask(Arrive(self._demand, self._streaming), self._demand.request_id)
        return None if lease is None else self._admitted(lease)

    async def entered(self) -> Admission:
        """Wait for it. Raises ShedError, ClientGoneError."""
        return self._admitted(await self._dispatcher.wait(self._demand.request_id, self._client))

    def _admitted(self, lease: Lease) -> Admission:
        dispatcher = self._dispatcher
        self._admission = Admission(dispatcher, lease, dispatcher.clock.now_s() - self._demand.arrived_s, self._client)
        return self._admission

    def leave(self) -> None:
        """The place is needed no more."""
        self._dispatcher.feed(self._admission.finished or Finished(self._demand.request_id, Outcome.INTERNAL))

    async def __aenter__(self) -> Admission:
        admission = self.enter()
        return admission if admission is not None else await self.entered()

    async def __aexit__(self, *_: object) -> None:
        self.leave()
