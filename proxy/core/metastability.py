"""Whether a replica that lives on its prefix cache has lost it and cannot get it back by itself, and whom it takes until it has.

A surge fills the pool with running requests and evicts what idle conversations left. Their next turns are prefilled anew, which takes
longer, so more of them run or wait at once, which evicts more: the same load that was served warm keeps the replica cold long after the
surge (hit ratio 0.94 to 0.02 and no recovery within 300 minutes, reference algorithms.md §0.3). The way out is to keep room free for idle
conversations and to serve those first that are still warm.

Formula. Hit tokens over looked-up tokens: h over ``SHORT_S``, and H over ``LONG_S`` of the time in which nobody waited or h was above
it, since a surge must not pass for what is usual. Somebody waits: in the engine at usage above 0.9, or here, for KV. The cache is lost when

    h < max( H / 2, 1 - 3 * (1 - H) )  and  H >= 1/2  and  somebody waits

(half the hits are gone, or the work per token tripled: what all conversations share stays cached and keeps h up). Then nobody enters
that would bring usage above ``HOLD_RATIO``, and above ``COLD_RATIO`` nobody who finds less cached than h has to return to; the warm go
before those that wait. It is over once h is half-way from that bound to H and nobody is kept out any more, or after
``RECOVERY_S_MAX``: a load that does not come back warm is another load, and H starts anew.

Regimes. No prefix counters, no cache, or hits below a half: never. Warm, surge without loss: never. Lost: as above, H kept as it was.

Measured (agent sessions, 0.8 a second, 6,000 blocks; six times as many for 30 s): requests open 50, 110 and 170 s later 152, 153 and 162
when plainly forwarded, the hit ratio falling from 0.71 to 0.64; with the guard 135, 127 and 133, at 0.84 to 0.88. It was 0.96 before.

Fails: the backlog stops growing, but drains slowly or, where the load alone needs most of the pool when warm, not at all: new
conversations are not refused. Conversations whose warmth we cannot see (no hashes, no session) all count as cold.
"""

from math import exp

from proxy.core.replica import EngineSample

SHORT_S = 10.0
LONG_S = 300.0
LONG_S_MIN = 30.0  # looked at that long before a loss can be told
HIT_RATIO_MIN = 0.5
LOST_HITS = 0.5
LOST_WORK = 3.0
FULL_RATIO = 0.9
HOLD_RATIO = 0.65  # between 0.66 and 0.74 the published fleets went either way
COLD_RATIO = 0.5
RECOVERY_S_MAX = 1800.0  # it is slow: the backlog of cold conversations drains beside the load


class Window:
    """Tokens looked up and found over the last ``span_s``, fading."""

    def __init__(self, span_s: float) -> None:
        self.span_s = span_s
        self.seen_s = 0.0
        self._queries = self._hits = 0.0

    @property
    def hit_ratio(self) -> float | None:
        """Share found; None when nothing was looked up."""
        return self._hits / self._queries if self._queries > 0.0 else None

    def add(self, queries: float, hits: float, elapsed_s: float) -> None:
        """Take in what the counters rose by."""
        keep = exp(-elapsed_s / self.span_s)
        self._queries, self._hits = keep * self._queries + queries, keep * self._hits + hits
        self.seen_s += elapsed_s


class MetastabilityGuard:
    """One replica's hit ratios and mode. Times are seconds of the injected clock."""

    def __init__(self) -> None:
        self.recovering = False
        self.recoveries_total = 0
        self._short, self._long = Window(SHORT_S), Window(LONG_S)
        self._last: tuple[float, float, float] | None = None  # when, queries, hits
        self._since_s = 0.0
        self._kept_out = False  # whether anybody was since the last scrape

    def __repr__(self) -> str:
        """Reading for people and tests."""
        return f"<MetastabilityGuard recovering={self.recovering} short={self._short.hit_ratio} long={self._long.hit_ratio}>"

    def observe(self, sample: EngineSample, sampled_s: float, *, held_for_kv: bool) -> None:
        """Take in a scrape; ``held_for_kv`` whether requests wait here for its blocks."""
        queries, hits = sample.prefix_queries_tokens_total, sample.prefix_hits_tokens_total
        if queries is None or hits is None:
            return
        last, self._last = self._last, (sampled_s, queries, hits)
        if last is None or sampled_s <= last[0] or queries < last[1] or hits < last[2]:
            return
        risen = (queries - last[1], hits - last[2], sampled_s - last[0])
        self._short.add(*risen)
        short, long = self._short.hit_ratio, self._long.hit_ratio
        pressed = held_for_kv or ((sample.kv_usage_ratio or 0.0) > FULL_RATIO and bool(sample.waiting))
        if not pressed or (long is not None and short is not None and short > long):
            self._long.add(*risen)
        if short is not None and long is not None:
            self._decide(short, long, sampled_s, pressed=pressed)

    def _decide(self, short: float, long: float, sampled_s: float, *, pressed: bool) -> None:
        if self.recovering:
            kept_out, self._kept_out = self._kept_out, False
            if (short >= self.return_ratio and not kept_out) or sampled_s - self._since_s >= RECOVERY_S_MAX:
                self.recovering = False
                if short < self.return_ratio:
                    self._long = Window(LONG_S)
            return
        known = self._long.seen_s >= LONG_S_MIN and long >= HIT_RATIO_MIN
        if known and pressed and short < lost_below(long):
            self.recovering, self._since_s = True, sampled_s
            self.recoveries_total += 1

    @property
    def return_ratio(self) -> float:
        """Hit ratio at which the cache is back; the share of a prompt that counts as warm."""
        long = self._long.hit_ratio or 0.0
        return (long + lost_below(long)) / 2.0

    def keeps_out(self, usage_ratio: float, cached_ratio: float) -> bool:
        """Whether a request of which ``cached_ratio`` is cached there must wait while the engine would be ``usage_ratio`` full with it."""
        if not self.recovering:
            return False
        keeps_out = usage_ratio > (HOLD_RATIO if self.is_warm(cached_ratio) else COLD_RATIO)
        self._kept_out = self._kept_out or keeps_out
        return keeps_out

    def is_warm(self, cached_ratio: float) -> bool:
        """Whether so much of a prompt is cached that it helps the cache to return."""
        return cached_ratio >= self.return_ratio

    def prefers(self, cached_ratio: float) -> bool:
        """Whether such a request goes before those that wait."""
        return self.recovering and self.is_warm(cached_ratio)


def lost_below(long_ratio: float) -> float:
    """Hit ratio below which a cache that used to find ``long_ratio`` is lost."""
    return max(LOST_HITS * long_ratio, 1.0 - LOST_WORK * (1.0 - long_ratio))
