"""From books and warmth to a route: builds what ``core.routing`` scores, and says how long a replica without room takes to have some.

A request of which nothing can be warm (no hashes, no session, no adapter) goes to the most headroom. For the others a replica that is
full only for now, and warmer than every one with room, is scored too: with the wait until its forecast has room (KV), or with the prefill
before it (prefill backlog, where waiting here or in the engine comes to the same). Where it scores best the request waits, at most as long
as going there saves, and once.

Fails: the wait for a full replica is a forecast of its ledger's; that bound is what believing it can cost.
"""

from collections.abc import Sequence
from math import inf

from proxy.core.backfill import earliest_start
from proxy.core.book import Book
from proxy.core.demand import Demand
from proxy.core.routing import LOAD_SLACK_S, WARMER_TOKENS, Standing, key_of, pick
from proxy.core.saturation import Binding
from proxy.core.verdict import Verdict
from proxy.core.waiting import Waiting
from proxy.core.warmth import Warmth

PREFILL_TOKEN_S = 1e-4  # until it was measured: 10,000 tokens a second, a large model on one GPU
WAITED_FOR = (Binding.KV, Binding.PREFILL)  # limits that pass by themselves, soon and foreseeably

Place = tuple[Book, Verdict, Binding]
Sent = dict[str, tuple[float, float]]  # to each replica: work lately, in tokens of prefill, and how many times over its pool


class Router:
    """Picks among the replicas where a request fits, and those it may wait for."""

    def __init__(self, warmth: Warmth) -> None:
        self.warmth = warmth
        self.standings: list[Standing] = []  # of the last request routed
        self.waits_total = 0  # requests that waited for a warm replica while another had room

    @staticmethod
    def is_indifferent(entry: Waiting, books: Sequence[Book]) -> bool:
        """Whether nothing counts but headroom: nothing of the request can be warm anywhere, and nobody else sends to these replicas."""
        return not can_be_warm(entry.demand) and not any(book.foreign for book in books)

    def route(self, entry: Waiting, places: Sequence[Place], books: Sequence[Book], now_s: float) -> Place:
        """The place to go to; with a binding other than NONE it is waited for. At least one of ``places`` has room.

        ``books`` are all that serve the model. Not for a request that ``is_indifferent``.
        """
        fitting = [place for place in places if place[2] is Binding.NONE]
        full: list[tuple[Place, Standing]] = []
        self.standings = []
        if len(places) == 1:
            return fitting[0]
        demand = entry.demand
        crowd = any(book.foreign for book in books)
        sent = self._sent(books, now_s)
        standings = self._standings(demand, fitting, books, sent, now_s)
        if len(fitting) < len(places):
            full = self._warmer(entry, [place for place in places if place[2] in WAITED_FOR], standings, books, sent, now_s)
            standings += [standing for _, standing in full]
        self.standings = standings
        key = self._key(demand, standings) if crowd else None
        chosen = standings.index(pick(standings, sum([load for load, _ in sent.values()]), key))
        if chosen < len(fitting):
            return fitting[chosen]
        place, warm = full[chosen - len(fitting)]
        self._wait(entry, place[0], min(one.score for one in standings[: len(fitting)]) - warm.score, now_s)
        return place

    def _wait(self, entry: Waiting, book: Book, saved_tokens: float, now_s: float) -> None:
        if entry.warm_until_s is None:
            self.waits_total += 1
            entry.warm_until_s = now_s + max(0.0, saved_tokens) * prefill_token_s(book)

    def _warmer(
        self, entry: Waiting, full: Sequence[Place], fitting: Sequence[Standing], books: Sequence[Book], sent: Sent, now_s: float
    ) -> list[tuple[Place, Standing]]:
        """Those of ``full`` that are warmer than all ``fitting``, with what waiting for them costs."""
        over = entry.warm_until_s is not None and now_s >= entry.warm_until_s
        if not full or over or not entry.may_wait or not can_be_warm(entry.demand):
            return []
        least = min(one.uncached_tokens for one in fitting) - WARMER_TOKENS
        soonest = min(one.work_tokens for one in fitting)
        found = []
        for place, standing in zip(full, self._standings(entry.demand, full, books, sent, now_s), strict=True):
            if standing.uncached_tokens > least:
                continue
            wait_tokens = self._wait_tokens(place, now_s)
            if not wait_tokens or wait_tokens + standing.work_tokens < soonest:
                found.append((place, standing._replace(wait_tokens=wait_tokens)))
        return found

    @staticmethod
    def _wait_tokens(place: Place, now_s: float) -> float:
        """Until it has room, in tokens of prefill."""
        book, verdict, binding = place
        if binding is Binding.PREFILL:
            return 0.0  # the prefill before it is in its standing
        start = earliest_start(book, verdict.curves, now_s)
        if start is None:
            return inf
        return max(0.0, start[0] - book.steps_now(now_s)) / book.clock.rate_per_s / prefill_token_s(book)

    def _standings(
        self, demand: Demand, places: Sequence[Place], books: Sequence[Book], sent: Sent, now_s: float
    ) -> list[Standing]:
        blocks = max(1, sum([book.spec.usable_blocks for book in books]))
        standings = []
        for book, verdict, _ in places:  # of many replicas this is most of a decision
            spec, saturation = book.spec, book.saturation
            uncached = demand.prompt_tokens - verdict.cached_tokens
            if demand.adapter:
                uncached += self.warmth.adapter_tokens(demand, spec.name)
            load_tokens, turnover = sent[spec.name]
            standings.append(
                Standing(
                    spec.name,
                    float(book.ledger.sequences_total + saturation.foreign_sequences),
                    max(1, spec.usable_blocks) / blocks,
                    saturation.backlog_tokens(now_s),
                    uncached,
                    verdict.headroom_ratio,
                    turnover,
                    0.0,
                    load_tokens,
                    LOAD_SLACK_S / prefill_token_s(book),
                )
            )
        return standings

    def _sent(self, books: Sequence[Book], now_s: float) -> Sent:
        """What was sent there lately. What others sent counts like ours, by sequences: the reports do not tell more of it."""
        found: Sent = {}
        for book in books:
            load_tokens, turnover = self.warmth.sent(book.spec.name, now_s)
            others = book.ledger.sequences_of_others + book.saturation.foreign_sequences
            if others:
                load_tokens *= 1.0 + others / max(1, book.ledger.sequences)
            found[book.spec.name] = load_tokens, turnover
        return found

    def _key(self, demand: Demand, standings: Sequence[Standing]) -> int:
        """What stands for the request's conversation: its session, else its first blocks that are not cached everywhere, else itself."""
        if demand.session:
            return key_of(f"{demand.tenant}\0{demand.session}")
        shared = max(standings, key=lambda one: one.uncached_tokens)
        own = self.warmth.first_unshared(demand, shared.replica, demand.prompt_tokens - shared.uncached_tokens)
        return key_of(demand.request_id) if own is None else own


def prefill_token_s(book: Book) -> float:
    """Seconds a token of prefill takes there, in steps full of it beside what is running."""
    saturation = book.saturation
    learned = saturation.full_step_s / max(1.0, saturation.step_time.token_budget)
    return learned if learned > 0.0 else PREFILL_TOKEN_S


def can_be_warm(demand: Demand) -> bool:
    """Whether anything of the request could be ready on one replica and not on another."""
    return bool(demand.session or demand.adapter) or any(part.block_hashes for part in demand.parts)
