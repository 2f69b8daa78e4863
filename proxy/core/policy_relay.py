"""The part of the policy that says how a replica is spoken to, and when one that fails is left alone."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Relay:
    """The path to a replica and back."""

    # A TCP connect within a data centre takes a millisecond; five seconds span two lost SYNs.
    connect_s: float = 5.0
    # The deadline bounds what a client waits and the budget what replicas get, so this bounds only what one request may bring down. Ten
    # further tries outlast any chance: where every other try fails, one request in two thousand is given up. (Two gave up one in eight.)
    reroutes_max: int = 10
    # While no replica answers, a fifth more load at most; the share that Envoy and Linkerd allow as well. What is answered pays for more.
    retry_ratio: float = 0.2
    # Ten a second harm no replica, and without them a quiet service, where a fifth is less than one, could never reroute.
    retries_per_s_min: float = 10.0
    # A whole answer comes when its last token is there: 10 minutes are what the OpenAI SDK waits, so nobody is left who wants it.
    first_byte_s: float = 600.0
    # Between two pieces of an answer lies a step, or a preemption's recompute: seconds. Ten minutes of silence are a dead engine.
    idle_s: float = 600.0
    # 100,000 tokens at 30 ms take 50 minutes; what takes longer than an hour is stuck, and its blocks are wanted.
    total_s: float = 3600.0
    # Load balancers need some seconds to see that /ready turned 503; until then requests still come.
    drain_accept_s: float = 10.0
    # A long answer's worth, counted from the end of drain_accept. Kubernetes must allow the sum (deploy/README.md).
    grace_s: float = 30.0
    # None: a stream that waits is silent, and its refusal has a status. Ten seconds would be well below what balancers take for idle.
    keepalive_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """When a replica that answers its scrapes but fails requests is taken out for a while, and how it comes back (``core.health``)."""

    # One failure is an accident, and so are two; by the fifth in a row four clients were delayed by a reroute.
    failures_max: int = 5
    # Half of what was sent there, twice what it is at the others at least: a rate that no retry hides.
    failure_ratio_max: float = 0.5
    # Below ten requests a ratio is chance.
    requests_min: int = 10
    # A hiccup is over after two seconds, and trying again costs one request, which is rerouted.
    eject_s: float = 2.0
    # Doubled up to a minute while it fails again as soon as it is back: one that stays bad costs two reroutes a minute, one that is
    # mended is back within one.
    eject_s_max: float = 60.0
    # More than half of a pool that fails fails for a reason of the requests, or leaves too few to carry the load.
    eject_ratio_max: float = 0.5
    # Caches, graphs and connections are cold; twice as many requests every second let them warm before the whole load is there.
    slow_start_s: float = 10.0
