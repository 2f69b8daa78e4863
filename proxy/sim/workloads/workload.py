"""What every workload offers: requests for clients that wait for each other, arrivals in time, later turns of a session, and its weight.

A workload is fixed by its seed: two worlds that load it with equal arguments are offered the same requests, whatever they do with
them and at whatever rate. Lengths and gaps are drawn from separate sequences, so a higher rate is the same traffic played faster.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from proxy.sim.sim_request import SimRequest


@dataclass(frozen=True, slots=True)
class LengthStats:
    """Means over the requests of a workload, tokens. ``output_tokens_mean`` is cut at the cap.

    ``token_steps_mean`` is what a request takes from a KV cache, P·L + L(L+1)/2 for prompt P and output L: it holds P + g tokens for
    one decode step at each g up to L. Prompt tokens that all requests share are not in P there. ``tokens_max`` is the context that
    the requests weighed need. ``prompt_tokens_fresh_mean`` are prompt tokens outside the full blocks that came before in the order of
    the workload: what even an endless prefix cache has to compute.
    """

    requests: int
    prompt_tokens_mean: float
    output_tokens_mean: float
    token_steps_mean: float
    tokens_max: int
    prompt_tokens_fresh_mean: float

    @property
    def prefix_hit_ratio_max(self) -> float:
        """Share of prompt tokens that an endless prefix cache would have had: the ceiling for any routing."""
        return 1.0 - self.prompt_tokens_fresh_mean / self.prompt_tokens_mean

    def requests_per_step(self, kv_tokens: float) -> float:
        """Most requests per decode step that a cache of ``kv_tokens`` can carry: λ·E[w] ≤ M (Dong and Cao, arXiv 2604.11001).

        Prefill steps, part-filled blocks and shared prefixes are left out.
        """
        return kv_tokens / self.token_steps_mean


class Workload(Protocol):
    """A source of requests. Request ids are unique within one run of it."""

    @property
    def name(self) -> str:
        """Name of a generator, or the stem of a file's name."""
        ...

    @property
    def stats(self) -> LengthStats:
        """Computed once, from a fixed sample of the workload itself."""
        ...

    @property
    def rate_per_s(self) -> float | None:
        """Mean requests per second as recorded; None where only the caller can say."""
        ...

    @property
    def load_ratio(self) -> float | None:
        """Load in shares of capacity that is part of the workload's definition; None where any will do."""
        ...

    def next_request(self, now_s: float) -> SimRequest | None:
        """Next request of a closed loop, arriving at ``now_s``; None when there is no other. Moves the workload on.

        Raises ValueError where the workload is nothing but its arrivals.
        """
        ...

    def arrivals(self, rate_per_s: float | None = None) -> Iterator[SimRequest]:
        """Requests in order of arrival, at a mean rate (None: as recorded). Each call starts again from the beginning.

        The rate counts all requests: a session's later turns come from ``follow_up`` and are part of it. Endless for a generator.
        Raises ValueError for a rate that is not above 0, and for None where there is no recorded rate.
        """
        ...

    def follow_up(self, request: SimRequest, ended_s: float) -> SimRequest | None:
        """Return the session's next turn, with its arrival, that the client sends because ``request`` was answered at ``ended_s``."""
        ...


def length_stats(requests: Iterable[SimRequest], *, block_size: int = 16, shared_tokens: int = 0) -> LengthStats:
    """Weigh requests. ``shared_tokens`` of each prompt are in the cache once for all of them. Raises ValueError when there is none."""
    count = prompts = outputs = steps = tokens_max = cached = 0
    seen: set[int] = set()
    for one in requests:
        count += 1
        prompts += one.prompt_tokens
        outputs += one.length
        steps += (one.prompt_tokens - shared_tokens) * one.length + one.length * (one.length + 1) // 2
        tokens_max = max(tokens_max, one.prompt_tokens + (one.length if one.output_tokens_max is None else one.output_tokens_max))
        # As the engine counts a hit: whole blocks from the front, never the prompt's last token.
        hit = sum(1 for _ in takewhile(seen.__contains__, one.block_hashes))
        cached += min(hit * block_size, (one.prompt_tokens - 1) // block_size * block_size)
        seen.update(one.block_hashes, one.output_hashes)
    if not count:
        raise ValueError("a workload without requests has no lengths")
    return LengthStats(count, prompts / count, outputs / count, steps / count, tokens_max, (prompts - cached) / count)
