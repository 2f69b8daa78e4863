"""Which replicas are left alone for a while because they fail requests, and how they come back.

A replica that answers its scrapes may still fail what it is sent. It is *ejected* when, counted since it was last taken in,

    failures in a row >= failures_max                              (``SLOW_START_FAILURES_MAX`` while it is coming back), or
    failures / requests >= failure_ratio_max over ``WINDOW_S``     with requests_min of them,

and the others of its pool fail less than half as often over that time (of those in a row all failed, whatever it answered before):
what fails everywhere is the requests' fault. What counts as a failure the driver says (``serving.attempts``): never a 4xx, never the
engine's own full queue, and nothing that is the request's fault (``core.blame``). Requests that were under way together and are lost
within ``INCIDENT_S`` are one failure: a broken connection says no more of its replica for carrying twenty of them.

An ejection lasts ``eject * 2^n`` up to ``eject_max``, n being those before it in a row, each before the replica had come through the slow
start after the last, or had answered ``requests_min`` requests: a new fault of one that was well is a new beginning. Then it comes back
with a *slow start*: at most ``2^(RAMP_DOUBLINGS * t / slow_start)`` requests at a time, t after its return.

Doubt. From the second failure in a row on (the first, while it is coming back) one that others of its pool can stand in for gets few
requests at a time, ``2^(RAMP_DOUBLINGS * t / DOUBT_S)`` at most, t after the failure, until it answers any. Else all that wait would go
at once to a replica that fails at once, and so has the most room, before the failures are enough to eject it.

One that cannot be spared by that (see Panic), while others serve its models, gets nobody for ``PAUSE_S`` and then one request to try, as
in a slow start: one that fails at once has the most room, would get every request, and use up the budget for retries.

Panic. No replica is ejected if then more than ``eject_ratio_max`` of the replicas of one of its models were out, for whatever reason;
if others go out meanwhile, the ejected ones are used again at once. So the last one is never ejected.

Elsewhere. What other proxies saw is told through ``suspect`` and ``trust`` (``core.shared_health``). One that another proxy ejected is
*suspected*: it starts slowly here too, ``SLOW_START_FAILURES_MAX`` failures in a row eject it, for as long as it was there. It is trusted
again from the first request on that it answers, here or elsewhere. That ends an ejection early as well, but only the first in a row: who
is failed again where others are served has a fault of its own way there, and goes by its own back-off.

Fails: a replica that hangs without an error fails nothing until its requests time out; ``core.wedge`` and the watcher see that sooner.
"""

from collections.abc import Iterable, Iterator
from math import inf

from proxy.core.health_record import EjectReason, HealthRecord, SlowStart
from proxy.core.policy_relay import Health

SLOW_START_FAILURES_MAX = 2  # it has been bad just now; one failure may still be an accident
PEERS_BETTER_RATIO = 0.5
PAUSE_S = 1.0  # two looks at it, and one reroute a second is what any budget allows
DOUBT_FAILURES = 2  # the first may be a broken connection, which says nothing of the next
DOUBT_S = 2.0  # 32 at a time after a second: what is healthy and slow to answer is hardly held up
INCIDENT_S = 1.0  # a process that dies takes its connections with it in milliseconds


__all__ = ["EjectReason", "Outliers", "SlowStart"]


class Outliers:
    """The replicas of one proxy by name, from when they were seen until they are forgotten. Every method is told the time."""

    def __init__(self, policy: Health) -> None:
        self.policy = policy
        self.ejections: dict[str, dict[EjectReason, int]] = {}
        self._records: dict[str, HealthRecord] = {}

    # ---- what is seen

    def seen(self, name: str, models: Iterable[str], now_s: float, *, usable: bool, cold: bool = False) -> None:
        """A replica went to another phase. ``cold``: it was not reachable and is again, so it starts slowly, unless it has to do it all."""
        record = self._records.setdefault(name, HealthRecord())
        record.models = tuple(models)
        if usable and not record.usable and cold and self._carried_by_others(record, now_s):
            record.forget()
            record.slow_start = self._ramp(now_s)
        record.usable = usable

    def forget(self, name: str) -> None:
        """The replica is gone for good."""
        self._records.pop(name, None)
        self.ejections.pop(name, None)

    def answered(self, name: str, now_s: float) -> bool:
        """It answered a request, by whatever status but those that count as failures; True when that ends a doubt."""
        record = self._records.get(name)
        if record is None:
            return False
        record.note(now_s, failed=False)
        record.answered_s = now_s
        record.trust()
        doubted, record.doubt = record.doubt is not None, None
        return doubted

    def failed(self, name: str, now_s: float, sent_s: float = inf) -> EjectReason | None:
        """It failed a request that was sent at ``sent_s``; the reason when it is ejected for it."""
        record = self._records.get(name)
        if record is None or (sent_s <= record.incident_s and now_s - record.incident_s < INCIDENT_S):
            return None
        record.incident_s = now_s
        record.note(now_s, failed=True, sent_s=sent_s)
        self._doubt(record, now_s)
        reason = self._reason(record, now_s)
        if reason is None or not record.in_use or not self._peers_better(record, reason, now_s):
            return None
        if not self._spared(record):
            if self._carried_by_others(record, now_s):
                record.slow_start, record.doubt = SlowStart(now_s + PAUSE_S, self.policy.slow_start_s), None
            return None
        self._eject(record, now_s)
        counts = self.ejections.setdefault(name, {})
        counts[reason] = counts.get(reason, 0) + 1
        return reason

    def acquit(self, name: str, now_s: float, sent_s: float) -> bool:
        """Its failure of the request sent at ``sent_s`` was the request's own; True when that changes how it is used."""
        record = self._records.get(name)
        if record is None or not record.take_back(sent_s):
            return False
        doubted = record.doubt is not None and record.in_a_row < DOUBT_FAILURES
        if doubted:
            record.doubt = None
        if record.ejected_until_s is not None and not record.lifted and self._reason(record, now_s) is None:
            record.lifted = doubted = True
        return doubted

    def returns(self, name: str, now_s: float) -> bool:
        """Whether an ejected one is used again from now on: its time is over, or too many are out."""
        record = self._records.get(name)
        if record is None or record.ejected_until_s is None:
            return False
        if now_s < record.ejected_until_s and not record.lifted and not self._panics(record):
            return False
        record.ejected_until_s, record.returned_s, record.lifted = None, now_s, False
        record.forget()
        record.slow_start = self._ramp(now_s) if self._carried_by_others(record, now_s) else None
        return True

    # ---- what other proxies saw

    def suspect(self, name: str, now_s: float, *, until_s: float, lasts_s: float, streak: int) -> bool:
        """Another proxy ejected it for so long, the ``streak``-th time in a row; True when it is suspected here from now on."""
        record = self._records.get(name)
        if record is None or not record.in_use or until_s <= now_s or self._ramping(record, now_s):
            return False
        if not self._carried_by_others(record, now_s):
            return False
        record.suspected_until_s, record.news = until_s, True
        record.slow_start = self._ramp(now_s)
        # Its back-off goes on here: an ejection counts as the same one, not as one more.
        record.streak, record.ejected_s, record.returned_s = max(record.streak, streak - 1), lasts_s, now_s
        return True

    def trust(self, name: str, answered_s: float) -> bool:
        """Another proxy was answered by it then; True when that changes anything here."""
        record = self._records.get(name)
        if record is None:
            return False
        since_s = record.ejected_at_s
        if since_s is not None and answered_s > since_s and record.streak == 1 and not record.lifted:
            record.lifted = True
            return True
        return record.trust()

    def news(self, name: str) -> bool:
        """Whether it came to be suspected or trusted since last asked."""
        record = self._records.get(name, HealthRecord())
        told, record.news = record.news, False
        return told

    def ejections_now(self) -> list[tuple[str, float, float, int]]:
        """Of each that is ejected: its name, since when, until when, and the how manieth time in a row."""
        return [
            (name, since_s, record.ejected_until_s, record.streak)
            for name, record in self._records.items()
            if record.ejected_until_s is not None and (since_s := record.ejected_at_s) is not None
        ]

    def answered_s(self, name: str) -> float:
        """When it last answered a request; minus infinity: never."""
        record = self._records.get(name)
        return -inf if record is None else record.answered_s

    # ---- what is asked

    def ejected(self, name: str) -> bool:
        """Whether it gets nobody."""
        record = self._records.get(name)
        return record is not None and record.ejected_until_s is not None

    def slow_start_of(self, name: str, now_s: float) -> SlowStart | None:
        """What bounds the requests that it has at a time: it is coming back, or in doubt; None when nothing does."""
        record = self._records.get(name)
        if record is None or (record.slow_start is None and record.doubt is None):
            return None
        if not self._ramping(record, now_s):
            record.slow_start = None
        if record.doubt is not None and record.doubt.requests_max(now_s) == inf:
            record.doubt = None
        bounds = [one for one in (record.slow_start, record.doubt) if one is not None]
        return min(bounds, key=lambda one: one.requests_max(now_s + PAUSE_S), default=None)

    # ---- rules

    def _reason(self, record: HealthRecord, now_s: float) -> EjectReason | None:
        policy = self.policy
        if record.in_a_row >= policy.failures_max:
            return EjectReason.CONSECUTIVE
        if record.in_a_row >= SLOW_START_FAILURES_MAX and now_s < record.suspected_until_s:
            return EjectReason.ELSEWHERE
        if record.in_a_row >= SLOW_START_FAILURES_MAX and self._ramping(record, now_s):
            return EjectReason.SLOW_START
        requests = len(record.ended)
        if requests >= policy.requests_min and record.failed >= policy.failure_ratio_max * requests:
            return EjectReason.RATIO
        return None

    def _doubt(self, record: HealthRecord, now_s: float) -> None:
        """Spare one that fails what it is sent, where others can stand in for it and do not fail as well."""
        enough = record.in_use and record.in_a_row >= (1 if self._ramping(record, now_s) else DOUBT_FAILURES)
        if enough and self._carried_by_others(record, now_s) and self._peers_better(record, EjectReason.CONSECUTIVE, now_s):
            record.doubt = SlowStart(now_s, DOUBT_S)

    def _eject(self, record: HealthRecord, now_s: float) -> None:
        policy = self.policy
        if now_s - record.returned_s >= max(policy.slow_start_s, record.ejected_s) or record.answers >= policy.requests_min:
            record.streak = 0
        record.ejected_s = min(policy.eject_s_max, policy.eject_s * 2.0 ** min(record.streak, 64))
        record.streak += 1
        record.ejected_until_s, record.slow_start, record.doubt = now_s + record.ejected_s, None, None
        record.suspected_until_s, record.lifted = -inf, False

    def _pools(self, record: HealthRecord) -> Iterator[list[HealthRecord]]:
        """By model, the replicas that serve it."""
        for model in record.models:
            yield [one for one in self._records.values() if model in one.models]

    def _spared(self, record: HealthRecord) -> bool:
        """Whether each of its pools can do without it."""
        pools = list(self._pools(record))
        most = self.policy.eject_ratio_max
        return bool(pools) and all(1 + sum(not one.in_use for one in pool) <= most * len(pool) for pool in pools)

    def _panics(self, record: HealthRecord) -> bool:
        """Whether one of its pools has too few left."""
        return any(sum(not one.in_use for one in pool) > self.policy.eject_ratio_max * len(pool) for pool in self._pools(record))

    def _peers_better(self, record: HealthRecord, reason: EjectReason, now_s: float) -> bool:
        """Whether what it fails is served elsewhere."""
        requests = failed = 0
        for one in {id(one): one for pool in self._pools(record) for one in pool if one is not record}.values():
            one.lapse(now_s)
            requests, failed = requests + len(one.ended), failed + one.failed
        ours = record.failed / len(record.ended) if reason is EjectReason.RATIO else 1.0
        return failed <= PEERS_BETTER_RATIO * ours * requests

    def _carried_by_others(self, record: HealthRecord, now_s: float) -> bool:
        """Whether others serve all its models, that are not coming back themselves."""
        pools = list(self._pools(record))
        return bool(pools) and all(
            any(one is not record and one.in_use and not self._ramping(one, now_s) for one in pool) for pool in pools
        )

    @staticmethod
    def _ramping(record: HealthRecord, now_s: float) -> bool:
        return record.slow_start is not None and record.slow_start.requests_max(now_s) < inf

    def _ramp(self, now_s: float) -> SlowStart | None:
        return SlowStart(now_s, self.policy.slow_start_s) if self.policy.slow_start_s else None
