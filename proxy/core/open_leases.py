"""Requests that hold a lease, and its one end.

A lease ends exactly once, by whichever comes first: the request's end, a reroute, the store's refusal, a cancellation, or the end of the
engine it was on. In the last case the lease is *voided* and the request itself goes on: its relay will break and report, and a grant
still under way is answered by a new place.

Settling. A tenant is charged the forecast KV token-time of a request when it is admitted, and instead of that, when it ends or leaves,
what it really took: with ``L`` tokens out of each sequence, whose blocks grow about evenly, by Simpson's rule over its ``L`` steps

    used = L / 6 * (blocks(1) + 4 * blocks(L / 2) + blocks(L))        block-steps

(The forecast scaled by ``L`` over its expected ``L`` will not do: the grid rounds every end up to 16 steps, which charged tenants of
answers of five tokens several times what they took.) The steps of its prefill are not counted.
"""

from collections.abc import Collection
from dataclasses import dataclass
from math import ceil

from proxy.core.book import Book
from proxy.core.demand import Demand
from proxy.core.events import Effect, Release
from proxy.core.fleet import Fleet
from proxy.core.ledger import Lease, Ledger
from proxy.core.newcomers import Newcomer, Undrawn
from proxy.core.tenant_shares import TenantShares
from proxy.core.wait_queue import Waiting, WaitQueue


@dataclass(slots=True)
class Open:
    """A request with a lease, as it was in the queue. ``charge`` is what its tenant was charged when ``forecast`` block-steps were
    expected.
    """

    lease: Lease
    entry: Waiting
    charge: float = 0.0
    forecast: float = 0.0
    voided: bool = False


class OpenLeases:
    """By request id. ``started`` and ``ended`` are totals."""

    def __init__(self, fleet: Fleet, queue: WaitQueue, shares: TenantShares) -> None:
        self.now_s = 0.0  # of the event being handled
        self.started = 0
        self.ended = 0
        self._fleet = fleet
        self._queue = queue
        self._shares = shares
        self._open: dict[str, Open] = {}

    def __len__(self) -> int:
        """Leases that have not ended."""
        return self.started - self.ended

    def start(
        self, entry: Waiting, book: Book, output_tokens_max: int, output_tokens_forecast: float, *,
        charge: tuple[float, float] = (0.0, 0.0), newcomer: Newcomer | Undrawn | None = None,
    ) -> Lease:  # fmt: skip
        """Book a lease for ``entry`` on ``book``, with so many output tokens at most and as forecast.

        ``charge``: what its tenant is charged, and the forecast it was made by; ``newcomer``: its curves there, if any.
        """
        demand, name = entry.demand, book.spec.name
        assert demand.request_id not in self._open, demand.request_id
        lease = Lease(
            lease_id=f"{demand.request_id}.{entry.tries}" + (f".{entry.refusals}" if entry.refusals else ""),
            demand=demand,
            replica=name,
            output_tokens_max=output_tokens_max,
            sent_s=self.now_s,
            sent_steps=book.steps_now(self.now_s),
            streaming=entry.streaming,
            output_tokens_forecast=output_tokens_forecast,
            held=entry.sequence > 0,
            considered=entry.considered,
            cached_tokens=int(self._fleet.warmth.cached_tokens(demand, (name,))[0]),
        )
        self._fleet.add(lease, newcomer)
        self._shares.started(lease)
        entry.curves.clear()  # 3 KB; the lease's rows hold what is needed of them
        self._open[demand.request_id] = Open(lease, entry, *charge)
        self.started += 1
        return lease

    def get(self, request_id: str) -> Open | None:
        """The request, if it is still known."""
        return self._open.get(request_id)

    def on(self, replicas: Collection[str]) -> int:
        """Requests sent to one of these, or about to be, whatever became of their leases. Goes through all of them."""
        return sum(opened.lease.replica in replicas for opened in self._open.values())

    def end(self, request_id: str, effects: list[Effect]) -> Open | None:
        """The request leaves; its lease ends unless it was voided before. A second end is None."""
        opened = self._open.pop(request_id, None)
        if opened is not None and not opened.voided:
            self._end(opened.lease, effects)
        return opened

    def void(self, replica: str, effects: list[Effect]) -> None:
        """The replica's engine is over: so are its leases, though not the requests."""
        for opened in self._open.values():
            if opened.lease.replica == replica and not opened.voided:
                self._end(opened.lease, effects)
                opened.voided = True

    def settle(self, opened: Open, output_tokens: float) -> None:
        """Charge what a request took that has ended, with so many tokens out of each sequence, instead of what was forecast."""
        book = self._fleet.books.get(opened.lease.replica)
        if opened.charge and book is not None:
            used = used_block_steps(book.ledger, opened.lease.demand, output_tokens)
            self._queue.settle(opened.lease.demand, opened.charge, used, output_tokens)

    def settle_so_far(self, opened: Open) -> None:
        """As ``settle``, of one that its client has left, by how far it has come."""
        book = self._fleet.books.get(opened.lease.replica)
        steps = 0.0 if book is None else book.steps_now(self.now_s)
        self.settle(opened, Ledger.tokens_out(opened.lease, steps))

    def _end(self, lease: Lease, effects: list[Effect]) -> None:
        lease.ended = True
        self.ended += 1
        self._shares.ended(lease)
        book = self._fleet.books.get(lease.replica)
        if book is not None:
            self._fleet.remove(book, lease, self.now_s)
        effects.append(Release(lease.replica, lease.lease_id))


def used_block_steps(ledger: Ledger, demand: Demand, output_tokens: float) -> float:
    """KV token-time of a request, in block-steps, with ``output_tokens`` out of each of its sequences."""
    if output_tokens <= 0.0:
        return 0.0
    if demand.copies == 1 and len(demand.parts) == 1 and ledger.shape.plain:  # nearly all: as below, without the calls
        before, size = demand.kv_prompt_tokens(demand.parts[0]) - 1, ledger.block_size
        blocks = (
            ceil((before + 1.0) / size)
            + 4.0 * ceil((before + output_tokens / 2.0) / size)
            + ceil((before + output_tokens) / size)
        )
        return output_tokens * blocks / 6.0
    begun, half, ended = (ledger.blocks_at(demand, tokens) for tokens in (1.0, output_tokens / 2.0, output_tokens))
    return output_tokens * (begun + 4.0 * half + ended) / 6.0
