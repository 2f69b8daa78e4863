"""ServeGen's production clients (Alibaba; Apache-2.0): many tenants, each with rates and burstiness by ten minutes, lengths by six hours.

Each client is one tenant. Its gaps are Gamma with its own coefficient of variation, its rate follows its windows, and a wanted load scales
all rates alike, so skew and burstiness stay. Prompts are text tokens plus the tokens of every image, sound and video.
Clients whose lengths the file does not have (the largest of some sets) are left out. No caps were recorded, so none are sent.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from heapq import merge
from itertools import accumulate, count, islice
from pathlib import Path
from random import Random

import msgspec

from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads.arrival_times import RatePhase, arrival_times, checked_rate
from proxy.sim.workloads.lengths import generator
from proxy.sim.workloads.trace_text import TraceError, name_of, whole_file
from proxy.sim.workloads.workload import LengthStats, length_stats

# Two hours from ten in the morning: long enough for windows to change, busy in all sets.
START_S, SPAN_S = 36_000.0, 7_200.0
# Clients more regular than this are drawn as if they were not: a Gamma law of shape 400 is as good as even.
GAP_CV_MIN = 0.05
STATS_REQUESTS = 20_000
STATS_SEED = 0
# Whole prompts, or the parts that make one: tokens of each, and how many of them a request has.
TEXT = ("input_tokens", "text_tokens")
MEDIA = ("image", "audio", "video")

Pdf = dict[str, float] | list[float]


class ServeGenClient(msgspec.Struct, frozen=True):
    """Windows as (start s, requests/s, CV of gaps, fitted law, its two parameters); token-count laws by the second from which they hold."""

    trace: list[tuple[float, float, float, str, float, float]]
    dataset: dict[int, dict[str, Pdf]] | None = None


class ServeGenFile(msgspec.Struct, frozen=True):
    """The file, as far as we read it."""

    window_s: float
    clients: dict[str, ServeGenClient]


class Counts:
    """Draws whole numbers by their weights. Empty when no weight is above 0."""

    __slots__ = ("_sums", "_values")

    def __init__(self, pdf: Pdf) -> None:
        pairs = enumerate(pdf) if isinstance(pdf, list) else ((float(value), weight) for value, weight in pdf.items())
        weighed = [(int(value), weight) for value, weight in pairs if weight > 0]
        self._values = [value for value, _ in weighed]
        self._sums = list(accumulate(weight for _, weight in weighed))

    def __bool__(self) -> bool:
        return bool(self._values)

    def draw(self, rng: Random) -> int:
        """Draw one."""
        return self._values[min(bisect_right(self._sums, rng.random() * self._sums[-1]), len(self._values) - 1)]


class ClientLengths:
    """Prompt and output lengths of one client in one stretch of the day."""

    __slots__ = ("_media", "_output", "_text")

    def __init__(self, laws: Mapping[str, Pdf]) -> None:
        self._text = next((counts for name in TEXT if (counts := Counts(laws.get(name, {})))), Counts({}))
        self._output = Counts(laws.get("output_tokens", {}))
        both = [(Counts(laws.get(f"{kind}_count", {})), Counts(laws.get(f"{kind}_tokens", {}))) for kind in MEDIA]
        self._media = [(count, tokens) for count, tokens in both if count and tokens]

    def __bool__(self) -> bool:
        return bool(self._text) and bool(self._output)

    def draw(self, rng: Random) -> tuple[int, int]:
        """Draw (prompt tokens, output tokens), both at least 1."""
        media = sum(tokens.draw(rng) for count, tokens in self._media for _ in range(count.draw(rng)))
        return max(1, self._text.draw(rng) + media), max(1, self._output.draw(rng))


class Client:
    """One tenant within the span played: its rates, and its lengths at each time."""

    def __init__(self, name: str, source: ServeGenClient, window_s: float) -> None:
        self.name = name
        laws = {start_s: lengths for start_s, one in sorted((source.dataset or {}).items()) if (lengths := ClientLengths(one))}
        self._starts = list(laws)
        self._lengths = list(laws.values())
        windows = sorted(source.trace)
        end_s = START_S + SPAN_S
        self.windows = [
            (max(start_s, START_S), min(start_s + window_s, end_s), rate, max(cv, GAP_CV_MIN))
            for start_s, rate, cv, *_ in windows
            if start_s < end_s and start_s + window_s > START_S and rate > 0
        ]

    @property
    def requests(self) -> float:
        """Expected in the span, as recorded."""
        return sum(rate * (end_s - start_s) for start_s, end_s, rate, _ in self.windows)

    @property
    def has_lengths(self) -> bool:
        """Whether any stretch of the day has its lengths."""
        return bool(self._lengths)

    def lengths_at(self, day_s: float) -> ClientLengths:
        """Lengths of the stretch; where that one has none, of the one before, or else the first."""
        return self._lengths[max(0, bisect_right(self._starts, day_s) - 1)]

    def phases(self, factor: float) -> Iterator[RatePhase]:
        """Rates over the span, seconds from its start."""
        now_s = START_S
        for start_s, end_s, rate, cv in self.windows:
            if start_s > now_s:
                yield RatePhase(start_s - START_S, 0.0, cv)
            yield RatePhase(end_s - START_S, rate * factor, cv)
            now_s = end_s


class ServeGen:
    """The clients of one file over ``SPAN_S``. ``rate_ratio_left_out`` is the share of requests whose clients have no lengths."""

    load_ratio: float | None = None

    def __init__(self, name: str, source: ServeGenFile, seed: int) -> None:
        self.name = name
        self.seed = seed
        clients = [Client(client, one, source.window_s) for client, one in source.clients.items()]
        self.clients = [one for one in clients if one.has_lengths and one.windows]
        if not self.clients:
            raise ValueError(
                f"{name}: no client has both requests and lengths from {START_S:g} s to {START_S + SPAN_S:g} s of the day"
            )
        played = sum(one.requests for one in self.clients)
        self.rate_per_s: float = played / SPAN_S
        self.rate_ratio_left_out = 1.0 - played / sum(one.requests for one in clients)
        self._stretches = [(client, window) for client in self.clients for window in client.windows]
        self._sums = list(accumulate((end_s - start_s) * rate for _, (start_s, end_s, rate, _) in self._stretches))
        self._closed = self._drawn(seed)

    @cached_property
    def stats(self) -> LengthStats:
        """Means over a fixed sample of clients and windows, whatever the seed."""
        return length_stats(islice(self._drawn(STATS_SEED), STATS_REQUESTS))

    def next_request(self, now_s: float) -> SimRequest | None:
        """Next of an endless stream, clients and windows in proportion to their requests."""
        return replace(next(self._closed), arrival_s=now_s)

    def arrivals(self, rate_per_s: float | None = None) -> Iterator[SimRequest]:
        """Arrivals up to ``SPAN_S``; the rate is the mean over it."""
        factor = 1.0 if rate_per_s is None else checked_rate(rate_per_s) / self.rate_per_s
        return merge(*(self._sent_by(client, factor) for client in self.clients), key=lambda one: one.arrival_s)

    def follow_up(self, request: SimRequest, ended_s: float) -> SimRequest | None:  # noqa: ARG002 - turns were not recorded as such
        """Return None: each request stands for itself."""
        return None

    def _sent_by(self, client: Client, factor: float) -> Iterator[SimRequest]:
        rng = generator(self.seed, self.name, client.name, "lengths")
        times = arrival_times(client.phases(factor), generator(self.seed, self.name, client.name, "gaps"))
        for serial, at_s in enumerate(times):
            prompt_tokens, output_tokens = client.lengths_at(START_S + at_s).draw(rng)
            name = f"{self.name}-{client.name}-{serial}"
            yield SimRequest(name, prompt_tokens, output_tokens, None, at_s, f"client-{client.name}")

    def _drawn(self, seed: int) -> Iterator[SimRequest]:
        rng = generator(seed, self.name, "closed")
        for serial in count():
            client, window = self._stretches[min(bisect_right(self._sums, rng.random() * self._sums[-1]), len(self._sums) - 1)]
            prompt_tokens, output_tokens = client.lengths_at(window[0]).draw(rng)
            yield SimRequest(f"{self.name}-{serial}", prompt_tokens, output_tokens, tenant=f"client-{client.name}")


def read_servegen(path: Path, seed: int) -> ServeGen:
    """Read a set of clients. Raises TraceError for a file that is none."""
    source = whole_file(path, ServeGenFile)
    try:
        return ServeGen(name_of(path), source, seed)
    except ValueError as error:
        raise TraceError(f"{path}: {error}") from error
