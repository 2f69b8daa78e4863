"""What placement says of a request: where it goes, or why nobody takes it.

Decides nothing but which of several misses is the nearest.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple

from proxy.core.bank import Bank, BankVerdict
from proxy.core.book import Book
from proxy.core.considered import LOOKS_MAX, Looks, ReplicaLook
from proxy.core.curves import Curves
from proxy.core.demand import Demand
from proxy.core.newcomers import Undrawn
from proxy.core.router import Place
from proxy.core.routing import Standing
from proxy.core.saturation import Binding
from proxy.core.verdict import Verdict
from proxy.core.wait_queue import Waiting
from proxy.core.warmth import Warmth


@dataclass(frozen=True, slots=True)
class Choice:
    """A request, the replica it goes to, and what it adds there. ``places`` were looked at, those in ``standings`` were scored."""

    entry: Waiting
    book: Book
    verdict: Verdict
    places: Sequence[Place] = ()
    standings: Sequence[Standing] = ()

    @property
    def block_steps(self) -> float:
        """KV token-time of its forecast in blocks × steps; 0 where none was drawn."""
        return 0.0 if isinstance(self.verdict.newcomer, Undrawn) else self.book.block_steps(self.verdict.curves)

    def note(self) -> None:
        """Keep with the request what was seen."""
        chosen: Place = (self.book, self.verdict, Binding.NONE)
        considered, undrawn = self.entry.considered, self.verdict.newcomer
        if isinstance(undrawn, Undrawn):
            considered.bounded(undrawn.mean_blocks, undrawn.ceiling_blocks)
        else:
            considered.forecast(self.verdict.curves)
        if not self.places:  # nobody else was looked at
            considered.placed = Looks((look_at(chosen, None),), 0)
            return
        looked = [chosen, *(place for place in self.places if place[0] is not self.book)]
        considered.placed = looks_at(looked, self.standings)


class Spot(NamedTuple):
    """One replica as a request sees it: the share of the pool it would leave at the forecast peak; ``binding`` is KV, UNAVAILABLE, or NONE
    where the other limits are still to be asked.
    """

    headroom_ratio: float
    book: Book
    binding: Binding
    look: BankVerdict
    row: int  # in its bank
    cached_tokens: float = 0.0  # of the prompt, expected in the replica's prefix cache

    def place(self, binding: Binding) -> Place:
        """With what binds, and the verdict made up."""
        look, curves = self.look, self.look.curves_on(self.row)
        return self.book, Verdict(binding, self.headroom_ratio, curves, self.cached_tokens, look.newcomer), binding


@dataclass(slots=True)
class Blocked:
    """Why nobody fits a request: the limit on the replica that came nearest, its headroom, and its curves where it waits for room."""

    binding: Binding = Binding.UNAVAILABLE
    headroom_ratio: float = float("-inf")
    curves: dict[str, Curves] = field(default_factory=dict)
    headrooms: dict[str, float] = field(default_factory=dict)
    only_for_kv: bool = False  # on every replica, so that nothing but room will change it
    contended: bool = False  # demand was found to exceed the pools
    places: Sequence[Place] = ()  # that were looked at
    standings: Sequence[Standing] = ()  # of those that were scored

    def note(self, book: Book, verdict: Verdict, binding: Binding) -> None:
        """Keep the nearest miss."""
        if binding in {Binding.UNAVAILABLE, Binding.WEDGED, Binding.SLOW_START}:
            return  # it does not wait for this one
        self.curves[book.spec.name] = verdict.curves
        self.headrooms[book.spec.name] = verdict.headroom_ratio
        if verdict.headroom_ratio > self.headroom_ratio or self.binding is Binding.UNAVAILABLE:
            self.binding, self.headroom_ratio = binding, verdict.headroom_ratio


def look_at(place: Place, score: float | None) -> ReplicaLook:
    """One replica as it was seen."""
    book, verdict, binding = place
    spec = book.spec
    return ReplicaLook(spec.name, binding, verdict.headroom_ratio, spec.usable_blocks, verdict.cached_tokens, score)


def looks_at(places: Sequence[Place], standings: Sequence[Standing]) -> Looks:
    """What was seen, as it is kept: the first of ``places``, which stand in the order of their headroom but for a chosen one."""
    scores = {one.replica: one.score for one in standings}
    told = tuple(look_at(place, scores.get(place[0].spec.name)) for place in places[:LOOKS_MAX])
    return Looks(told, len(places) - len(told))


def spots_of(
    demand: Demand, looks: Iterable[tuple[Bank, BankVerdict]], barred: Set[str], warmth: Warmth | None = None
) -> list[Spot]:
    """The replicas of the banks that are not ``barred``, the one with the most headroom first; with what ``warmth`` says of them."""
    spots: list[Spot] = []
    for bank, look in looks:
        cached = repeat(0.0) if warmth is None else warmth.cached_tokens(demand, bank.names)
        headrooms: list[float] = look.headroom_ratio.tolist()
        seen = zip(bank.books, headrooms, bank.can_serve(demand), cached, strict=False)
        for row, (book, headroom, usable, tokens) in enumerate(seen):
            if barred and book.spec.among(barred):
                continue
            binding = Binding.NONE
            if not usable:
                binding = Binding.UNAVAILABLE
            elif headroom < 0.0 and book.ledger.occupied and not book.saturation.wedge.wedged:
                binding = Binding.KV  # a full pool binds, unless nothing is on it
            spots.append(Spot(headroom, book, binding, look, row, tokens))
    spots.sort(key=itemgetter(0), reverse=True)
    return spots


@dataclass(slots=True)
class Crowd:
    """Whether demand exceeds the pools, found out when it is asked for and only once for a choice."""

    contended: bool | None  # None: not known yet
    find_out: Callable[[], bool]

    def is_contended(self) -> bool:
        """Whether it does."""
        if self.contended is None:
            self.contended = self.find_out()
        return self.contended
