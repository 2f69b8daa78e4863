"""What ``/admin/report`` tells and ``kvgate report`` reads: sums over minutes, in a form that adds up over proxies.

``Sums`` are those of one mode. Histograms map a bucket of ``core.log_buckets`` to a count; its keys are strings because JSON's are. Of
preemptions every proxy sees those of all, so over proxies the most is taken, not the sum.
"""

from collections.abc import Iterable

import msgspec


class Sums(msgspec.Struct, omit_defaults=True):
    """Counts since some time, of the minutes in one mode."""

    seconds: float = 0.0
    requests: int = 0
    refused: int = 0
    held: int = 0
    would_hold: int = 0
    would_hold_ended: int = 0  # of them, those of which it is known whether a preemption followed
    would_hold_needless: int = 0  # of those, the ones that none followed
    would_shed: int = 0
    counted: int = 0  # prompts whose tokens were counted here and by the engine
    mismatched: int = 0
    preemptions: dict[str, int] = {}  # by replica
    preceded: dict[str, int] = {}  # of them, those with a request there that would have been held
    own_s: dict[str, int] = {}  # histogram: kvgate's own time on the way in
    would_wait_s: dict[str, int] = {}
    queue_wait_s: dict[str, int] = {}  # of those that were held


class HistoryReport(msgspec.Struct, omit_defaults=True):
    """One proxy's answer."""

    since_s: float  # how far back was asked for
    known_s: float  # how far back it goes
    mode: str
    wait_s_max: float  # the policy's
    enforce_ratio: float = 1.0
    modes: dict[str, Sums] = {}


ADDED = (
    "requests", "refused", "held", "would_hold", "would_hold_ended", "would_hold_needless", "would_shed", "counted",
    "mismatched",
)  # fmt: skip
HISTOGRAMS = ("own_s", "would_wait_s", "queue_wait_s")
BY_REPLICA = ("preemptions", "preceded")


def added(sums: Iterable[Sums], *, proxies: bool) -> Sums:
    """One for all: of several minutes, or of several ``proxies`` that saw the same replicas at the same time."""
    total = Sums()
    for one in sums:
        total.seconds = max(total.seconds, one.seconds) if proxies else total.seconds + one.seconds
        for name in ADDED:
            setattr(total, name, getattr(total, name) + getattr(one, name))
        for name in (*HISTOGRAMS, *BY_REPLICA):
            ours, most = getattr(total, name), proxies and name in BY_REPLICA
            for key, count in getattr(one, name).items():
                ours[key] = max(ours.get(key, 0), count) if most else ours.get(key, 0) + count
    return total
