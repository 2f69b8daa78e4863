"""Which of several replicas a request goes to.

Score (LMetric, reference algorithms.md §5): the delay that the request's prefill causes, in tokens of prefill work,

    score = wait + pending + uncached * (1 + batch)        least wins

``wait`` is the time until the replica has room, 0 where it has. ``pending`` is prefill sent there and not done: the request waits for
it. ``uncached`` is its own work (``core.warmth``), and each of the ``batch`` sequences running there waits while it is done. (The
published product alone is 0 on an idle replica, cold or not.) Equal scores: most of the pool left at the forecast peak; then whose cache
was filled the fewest times over, so that new prefixes spread.

Bounded load (consistent hashing with bounded loads, on work instead of requests). A replica's load is the work sent there in the last
minute or so; with the request's own uncached work, it may be ``LOAD_BOUND`` times its fair share and ``LOAD_SLACK_S`` of work more. One
above that is passed over where another would end up with less, so the warmth of a few cannot starve the rest, and what everybody asks
for spreads; a long conversation on an idle fleet stays, since moving it would only make more work. (Counting sequences instead sent
prompts of 30,000 cached tokens away from replicas that ran a dozen short requests: it lost a seventh of a trace's hits.)

Two candidates. Where others send to the same replicas and none is warmer than another, only two are looked at, chosen by hash of the
conversation's first own blocks: proxies that do not share an index send one conversation to the same two, and what they send between
two reports does not all go to whichever the last one showed as idle.

Fails: outputs are taken as alike, so a few very long ones load a replica more than ``batch`` tells; the fit in the pool, which comes
first, bounds that.
"""

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from typing import NamedTuple

LOAD_BOUND = 1.25  # the usual one: below it affinity is lost for nothing, above it the slowest replica decides
LOAD_SLACK_S = 1.0  # of the last minute: work of less than that is no load worth balancing
LOAD_MEMORY_S = 60.0  # some tens of requests each: less is noise, more is no longer there
WARMER_TOKENS = 256.0  # two entries of the index: less is a rest of a block and no reason to prefer a replica
_MASK = (1 << 64) - 1


class Standing(NamedTuple):
    """How one replica stands to one request. Tokens are of prefill work; ``share`` is its part of the pools' blocks, 0..1."""

    replica: str
    sequences: float  # there now: what we sent, and what the last reports showed beyond that
    share: float
    pending_tokens: float
    uncached_tokens: float
    headroom_ratio: float = 0.0
    turnover: float = 0.0  # how many times over we have filled its pool
    wait_tokens: float = 0.0  # until it has room, as prefill that could be done meanwhile
    load_tokens: float = 0.0  # work sent there lately
    slack_tokens: float = 0.0  # work of ``LOAD_SLACK_S``

    @property
    def score(self) -> float:
        """Delay caused, in tokens of prefill work."""
        return self.wait_tokens + self.pending_tokens + self.uncached_tokens * (1.0 + self.sequences)

    @property
    def work_tokens(self) -> float:
        """Prefill work until its first token, from when it has room."""
        return self.pending_tokens + self.uncached_tokens


def within_bound(standings: Sequence[Standing], load_total: float) -> list[Standing]:
    """Those of ``standings`` that may take the request. ``load_total`` is over every replica that serves the model, full ones too."""
    after = [(one.load_tokens + one.uncached_tokens) / one.share for one in standings]
    least = min(after)
    return [
        one
        for one, load in zip(standings, after, strict=True)
        if load <= least or load <= LOAD_BOUND * (load_total + one.uncached_tokens) + one.slack_tokens / one.share
    ]


def pick(standings: Sequence[Standing], load_total: float, key: int | None) -> Standing:
    """The replica to send a request to, of those where it fits.

    ``key`` stands for its conversation (``key_of``); None where nobody else sends to these replicas, and all can be looked at.
    """
    assert standings
    near = within_bound(standings, load_total)
    if key is not None and len(near) > 2:
        work = [one.uncached_tokens for one in near]
        if max(work) - min(work) < WARMER_TOKENS:
            near = two_of(near, key)
    return min(near, key=lambda one: (one.score, -one.headroom_ratio, one.turnover))


def two_of(standings: Sequence[Standing], key: int) -> list[Standing]:
    """Two of many by rendezvous hash: the same two for one key, whoever asks, as long as both are there."""
    return sorted(standings, key=lambda one: _mixed(key ^ _seed(one.replica)))[:2]


def key_of(text: str) -> int:
    """64 bits for a name: the same in every process."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


@cache
def _seed(replica: str) -> int:
    """One for each replica that ever was: names are configured, so they are few."""
    return key_of(replica)


def _mixed(value: int) -> int:
    """The finalizer of splitmix64: neighbouring values end up far apart."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
