"""Where a request goes that a replica has failed before its first byte.

At once to one that has not failed it, else, before everybody else of its tenant, to whichever has room and may be tried again first:
a replica that failed it is left alone by this request for

    min(AVOID_S_MAX, AVOID_S * 2^(tries - 1))        seconds, ``tries`` being the failures it has met

which is long enough to learn by a probe whether that one is still there. So what meets one bad replica after another is neither given up
while others serve, nor sent around in a circle. It ends with its deadline (``core.shedding``), with the retry budget
(``core.retry_budget``), or at ``relay.reroutes_max``, since a request may be what brings replicas down.

It is given up at once where no other replica is known to serve its model, or none of them is worth waiting for. Where nobody is held
(``observe``) it cannot wait, so there each replica is tried once.

Fails: one that fails after a long prefill only begins to wait then, and may find its deadline over.
"""

from collections.abc import Set

from proxy.core.demand import Demand
from proxy.core.fleet import Fleet
from proxy.core.open_leases import Open
from proxy.core.wait_queue import Waiting

AVOID_S = 1.0  # twice the interval of scrapes, and a failure brings the next one forward
AVOID_S_MAX = 8.0  # a few tries more in the usual thirty seconds


def retried(opened: Open, failed: str, now_s: float) -> Waiting:
    """The request as it waits again, now that the replica or server ``failed`` has failed it, or could not be had after all."""
    entry = opened.entry
    tries = entry.tries + 1
    avoided = entry.avoided | {failed: now_s + min(AVOID_S_MAX, AVOID_S * 2.0 ** (tries - 1))}
    return Waiting(
        opened.lease.demand,
        now_s,
        opened.lease.streaming,
        opened.forecast,
        excluded=entry.excluded,
        tries=tries,
        avoided=avoided,
    )


def may_go_on(fleet: Fleet, demand: Demand, tried: Set[str], failed: str, *, held: bool) -> bool:
    """Whether another replica may yet serve what ``failed``, the last of those ``tried``, has failed. ``held``: it can wait for one."""
    return fleet.could_retry(demand, failed) if held else fleet.could_take(demand, tried | demand.kept_from)
