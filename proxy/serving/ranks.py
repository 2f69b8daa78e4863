"""Data-parallel engines of one server as replicas of their own: what the server tells is split by engine, a request is pinned to one.

Each engine has its own pool of blocks, so each gets a book of its own, named after its server and its rank (``gpu:8000#1``; a
configured name holds no ``#``). The server keeps one URL, one health, one epoch: what happens to it happens to every engine.

A rank is the engine's place among those that the server shows, which is what vLLM takes in ``X-data-parallel-rank``: it counts the
engines that this server manages (under ``--data-parallel-hybrid-lb`` the node's own, whose labels begin higher).

Not split, but one pool under the server's own name, are one engine; engines without statistics, since how many of them this server
manages shows only in its metrics, and a rank that is not there is refused; and several servers behind one URL.

Fails: where the header is not read (routes other than ``RANKED_ROUTES``, engines that are too old) vLLM's balancer chooses, and the
request may run on another engine than the one it is booked on: that one's bias takes up the difference. The same holds where the
client's own header names another engine.
"""

from dataclasses import replace

from proxy.core.replica import ReplicaFacts, ReplicaSample, ReplicaSpec
from proxy.ports import Headers

RANK_HEADER = b"x-data-parallel-rank"
RANKED_ROUTES = frozenset({"/v1/chat/completions", "/v1/chat/completions/batch", "/v1/completions", "/inference/v1/generate"})
_MARK = "#"


def engines_apart(facts: ReplicaFacts) -> int:
    """How many pools of their own the server has; 1 where it is taken as a whole."""
    return facts.engines if facts.log_stats and not facts.several_engines_behind else 1


def server_of(replica: str) -> str:
    """The configured name: of an engine that of its server, any other as it is."""
    return replica.partition(_MARK)[0]


def rank_of(replica: str) -> int | None:
    """The engine's rank; None for a server as a whole."""
    rank = replica.partition(_MARK)[2]
    return int(rank) if rank else None


def split_spec(spec: ReplicaSpec, engines: int) -> tuple[ReplicaSpec, ...]:
    """One spec for each of a server's engines, by rank: equal shares of its blocks. The server's own where it is taken as a whole."""
    if engines == 1:
        return (spec,)
    own = replace(spec, server=spec.name, engines=1, usable_blocks=spec.usable_blocks // spec.engines)
    return tuple(replace(own, name=f"{spec.name}{_MARK}{rank}") for rank in range(engines))


def split_sample(sample: ReplicaSample, names: tuple[str, ...]) -> tuple[ReplicaSample, ...]:
    """What the scrape tells of each of ``names``, by rank.

    Where it shows another number of engines than were probed, nobody can say which is which: unknown until the next probe.
    """
    if len(names) == 1:
        return (replace(sample, replica=names[0]),)
    known = len(sample.engines) == len(names)
    return tuple(
        replace(sample, replica=name, engines=sample.engines[rank : rank + 1] if known else ()) for rank, name in enumerate(names)
    )


def pinned(headers: Headers, replica: str, route: str) -> Headers:
    """The headers with the engine's rank, on a route that takes it. The client's own choice stands."""
    rank = rank_of(replica)
    if rank is None or route not in RANKED_ROUTES or any(name == RANK_HEADER for name, _ in headers):
        return headers
    return [*headers, (RANK_HEADER, b"%d" % rank)]
