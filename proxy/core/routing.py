"""Which of several replicas a request goes to.

Score (LMetric, reference algorithms.md §5): the delay that the request's prefill causes, in tokens of prefill work,

    score = wait + pending + uncached * (1 + batch)        least wins

``wait`` is the time until the replica has room, 0 where it has. ``pending`` is prefill sent there and not done: the request waits for
it. ``uncached`` is its own work (``core.warmth``), and each of the ``batch`` sequences running there waits while it is done. (The
published product alone is 0 on an idle replica, cold or not.) Equal scores: most of the pool left at the forecast peak; then whose cache
was filled the fewest times over, so that new prefixes spread.

Bounded load (consistent hashing with bounded loads): replicas with ``LOAD_BOUND`` times their fair share of the sequences are passed over
while others fit, so the warmth of a few cannot starve the rest, and what everybody asks for spreads. Load is what we have sent and not
seen end, plus what the last report showed beyond that: never the report alone, which is the same for everybody until the next.

Two candidates. Where others send to the same replicas and none is warmer than another, only two are looked at, chosen by hash of the
conversation's first own blocks: proxies that do not share an index send one conversation to the same two, and what they send between
two reports does not all go to whichever the last one showed as idle.

Fails: outputs are taken as alike, so a few very long ones load a replica more than ``batch`` tells; the fit in the pool, which comes
first, bounds that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b

LOAD_BOUND = 1.25  # the usual one: below it affinity is lost for nothing, above it the slowest replica decides
LOAD_SLACK = 2.0  # sequences, as the fair share of a few is a fraction of one: 1 lost a tenth of a trace's hits, 3 balanced worse
WARMER_TOKENS = 256.0  # two entries of the index: less is a rest of a block and no reason to prefer a replica
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Standing:
    """How one replica stands to one request. ``sequences`` are there now (load), ``share`` is its part of the pools' blocks, 0..1."""

    replica: str
    sequences: float
    share: float
    pending_tokens: float
    uncached_tokens: float
    headroom_ratio: float = 0.0
    turnover: float = 0.0  # how many times over we have filled its pool
    wait_tokens: float = 0.0  # until it has room, as prefill that could be done meanwhile

    @property
    def score(self) -> float:
        """Delay caused, in tokens of prefill work."""
        return self.wait_tokens + self.pending_tokens + self.uncached_tokens * (1.0 + self.sequences)

    @property
    def work_tokens(self) -> float:
        """Prefill work until its first token, from when it has room."""
        return self.pending_tokens + self.uncached_tokens


def within_bound(standings: Sequence[Standing], sequences_total: float) -> list[Standing]:
    """Those of ``standings`` that may take one more; where none may, the one furthest below its bound.

    ``sequences_total`` counts over every replica that serves the model, also those where the request does not fit.
    """

    def room(one: Standing) -> float:
        return LOAD_SLACK + LOAD_BOUND * (sequences_total + 1.0) * one.share - (one.sequences + 1.0)

    below = [one for one in standings if room(one) >= 0.0]
    return below or [max(standings, key=room)]


def pick(standings: Sequence[Standing], sequences_total: float, key: int | None) -> Standing:
    """The replica to send a request to, of those where it fits.

    ``key`` stands for its conversation (``key_of``); None where nobody else sends to these replicas, and all can be looked at.
    """
    assert standings
    near = within_bound(standings, sequences_total) if len(standings) > 1 else list(standings)
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
