"""Single requests drawn from a length law (chat, rag, reasoning), the alternation of two of them, and a surge of one."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import count, islice

from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads.arrival_times import RatePhase, arrival_times, checked_cv, checked_rate, steady
from proxy.sim.workloads.lengths import LengthLaw, generator
from proxy.sim.workloads.workload import LengthStats, length_stats

# Enough for the mean KV token-steps of the heaviest law to come within 2 % of the true one.
STATS_REQUESTS = 20_000
STATS_SEED = 0

SHIFT_PERIOD_S = 600.0

SURGE_LOAD_RATIO = 0.8
SURGE_FACTOR = 10.0
# Ten minutes of plain load come first, so that the surge hits a fleet that has settled.
SURGE_START_S, SURGE_END_S, SURGE_OVER_S = 600.0, 900.0, 4500.0


def requests(name: str, law: LengthLaw, seed: int) -> Iterator[SimRequest]:
    """Yield requests for ever, without an arrival: lengths do not depend on it."""
    rng = generator(seed, name, "lengths")
    for serial in count():
        prompt_tokens, output_tokens = law.draw(rng)
        yield SimRequest(f"{name}-{serial}", prompt_tokens, output_tokens, law.output_tokens_max)


@lru_cache
def law_stats(law: LengthLaw) -> LengthStats:
    """Weigh a fixed sample of a law."""
    return length_stats(islice(requests("sample", law, STATS_SEED), STATS_REQUESTS))


class Sampled:
    """Requests with lengths from one law, each a client of its own."""

    load_ratio: float | None = None
    rate_per_s: float | None = None

    def __init__(self, name: str, law: LengthLaw, seed: int, gap_cv: float = 1.0) -> None:
        self.name = name
        self.law = law
        self.seed = seed
        self.gap_cv = checked_cv(gap_cv)
        self._closed = requests(name, law, seed)

    @property
    def stats(self) -> LengthStats:
        """Means over a fixed sample, whatever the seed."""
        return law_stats(self.law)

    def next_request(self, now_s: float) -> SimRequest | None:
        """Next of an endless stream."""
        return replace(next(self._closed), arrival_s=now_s)

    def arrivals(self, rate_per_s: float | None = None) -> Iterator[SimRequest]:
        """Endless arrivals with Gamma gaps."""
        return self._timed(steady(checked_rate(rate_per_s), self.gap_cv))

    def follow_up(self, request: SimRequest, ended_s: float) -> SimRequest | None:  # noqa: ARG002 - every client sends one request
        """Return None: each request is a client of its own."""
        return None

    def _timed(self, phases: tuple[RatePhase, ...]) -> Iterator[SimRequest]:
        times = arrival_times(phases, generator(self.seed, self.name, "gaps"))
        return (replace(one, arrival_s=at_s) for at_s, one in zip(times, requests(self.name, self.law, self.seed), strict=False))


class Surge(Sampled):
    """Plain load, then ten times as much for five minutes, then plain load for an hour. ``arrivals`` takes the plain rate."""

    load_ratio = SURGE_LOAD_RATIO

    def next_request(self, now_s: float) -> SimRequest | None:
        """Raise ValueError: a surge is nothing but its arrivals."""
        raise ValueError(
            f"{self.name} is a course of arrivals (asked at {now_s:g} s): clients that wait for each other never surge"
        )

    def arrivals(self, rate_per_s: float | None = None) -> Iterator[SimRequest]:
        """Arrivals up to ``SURGE_OVER_S``; the rate is that before and after the surge, 0.8 of capacity by definition."""
        plain = checked_rate(rate_per_s)
        courses = ((SURGE_START_S, plain), (SURGE_END_S, plain * SURGE_FACTOR), (SURGE_OVER_S, plain))
        return self._timed(tuple(RatePhase(end_s, rate, self.gap_cv) for end_s, rate in courses))


class Shift:
    """Two laws by turns, ``SHIFT_PERIOD_S`` each, by the clock: of the arrival, or of the moment a closed loop asks.

    At one mean rate both phases bring the same KV load: the rate of each is in inverse proportion to its token-steps. Equal rates
    would make the one idle or the other hopeless.
    """

    load_ratio: float | None = None
    rate_per_s: float | None = None

    def __init__(self, name: str, laws: tuple[Sampled, Sampled], seed: int, gap_cv: float = 1.0) -> None:
        self.name = name
        self.laws = laws
        self.seed = seed
        self.gap_cv = checked_cv(gap_cv)

    @cached_property
    def stats(self) -> LengthStats:
        """Means over the requests that arrive, of which the lighter law has more."""
        both = list(zip(self.rate_shares, (law.stats for law in self.laws), strict=True))
        return LengthStats(
            sum(one.requests for _, one in both),
            sum(share * one.prompt_tokens_mean for share, one in both),
            sum(share * one.output_tokens_mean for share, one in both),
            sum(share * one.token_steps_mean for share, one in both),
            max(one.tokens_max for _, one in both),
            sum(share * one.prompt_tokens_fresh_mean for share, one in both),
        )

    @cached_property
    def rate_shares(self) -> tuple[float, float]:
        """Share of the requests that each law has over a whole cycle."""
        first, second = (1.0 / law.stats.token_steps_mean for law in self.laws)
        return first / (first + second), second / (first + second)

    def next_request(self, now_s: float) -> SimRequest | None:
        """Next of the law whose turn it is at ``now_s``."""
        return self._law_at(now_s).next_request(now_s)

    def arrivals(self, rate_per_s: float | None = None) -> Iterator[SimRequest]:
        """Endless arrivals at this mean rate over a whole cycle."""
        times = arrival_times(self._phases(checked_rate(rate_per_s)), generator(self.seed, self.name, "gaps"))
        streams = {law: requests(law.name, law.law, law.seed) for law in self.laws}
        return (replace(next(streams[self._law_at(at_s)]), arrival_s=at_s) for at_s in times)

    def follow_up(self, request: SimRequest, ended_s: float) -> SimRequest | None:  # noqa: ARG002 - every client sends one request
        """Return None: each request is a client of its own."""
        return None

    def _law_at(self, now_s: float) -> Sampled:
        return self.laws[int(now_s // SHIFT_PERIOD_S) % 2]

    def _phases(self, mean: float) -> Iterator[RatePhase]:
        for index in count():
            # Over two phases of equal length the mean of both rates is the mean asked for.
            yield RatePhase((index + 1) * SHIFT_PERIOD_S, 2.0 * mean * self.rate_shares[index % 2], self.gap_cv)
