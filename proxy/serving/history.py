"""The last hours, minute by minute and mode by mode: what ``kvgate report`` is made of.

A minute holds counts and histograms, a few hundred numbers; ``MINUTES_MAX`` of them are kept. A change of mode begins a new entry, so no
entry mixes what was observed with what was enforced. One that nothing can change any more is kept packed, in about 0.7 kB: as objects a
busy minute takes 8 kB, which was half a megabyte an hour for two days on end.

Of a preemption it is asked whether enforcing would have forestalled it: it is *preceded* where a request that would have been held runs on
that replica, or ended there a moment ago. Of a request that would have been held it is asked whether holding it was of any use: it was
*needless* where nothing was preempted on its replica from its coming to its end. Engines count a preemption when its victim resumes, so
both wait ``LATE_S`` before they are answered.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

import msgspec

from proxy.core.gate import Gate
from proxy.core.log_buckets import bucket_of
from proxy.core.outcome import Mode
from proxy.ports import Clock
from proxy.ports.record import RequestRecord
from proxy.wire.history_report import HistoryReport, Sums, added

MINUTE_S = 60.0
MINUTES_MAX = 48 * 60  # two days: "since yesterday morning" is a question
LOOK_S = 0.5
LATE_S = 5.0  # two seconds until a victim resumes, two scrapes, and some
WAITING_MAX = 20_000  # requests of which it is not known yet whether their hold would have been of use
CHANGES_MAX = 4096  # of preemption counts; seconds of a replica that does nothing else


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Sums).decode


@dataclass(slots=True)
class _Entry:
    begun_s: float
    mode: Mode
    sums: Sums = field(default_factory=Sums)


@dataclass(frozen=True, slots=True)
class _Past:
    """An entry that nothing changes any more."""

    begun_s: float
    mode: Mode
    packed: bytes

    @property
    def sums(self) -> Sums:
        return _unpack(self.packed)


@dataclass(frozen=True, slots=True)
class _WouldHold:
    replica: str
    sent_s: float
    ended_s: float
    sums: Sums  # of the minute it ended in


class History:
    """One process's account of its last hours."""

    def __init__(self, gate: Gate, clock: Clock) -> None:
        self._gate = gate
        self._clock = clock
        self._begun_s = clock.now_s()
        self._past: deque[_Past] = deque(maxlen=MINUTES_MAX)
        self._entries: deque[_Entry] = deque(maxlen=MINUTES_MAX)  # the newest, and those before it that may still change
        self._would_hold: deque[_WouldHold] = deque(maxlen=WAITING_MAX)
        self._preempted: dict[str, int] = {}  # by replica, as counted at the last look
        self._changes: deque[tuple[float, str]] = deque(maxlen=CHANGES_MAX)  # when preemptions were seen, and where

    def keep(self, record: RequestRecord) -> None:
        """A request ended."""
        now_s = self._clock.now_s()
        sums = self._now(now_s)
        sums.requests += 1
        sums.held += record.held
        sums.refused += record.gate is not None
        if record.own_s is not None:
            _count(sums.own_s, record.own_s)
        if record.held and record.queue_wait_s is not None:
            _count(sums.queue_wait_s, record.queue_wait_s)
        if record.prompt_tokens_reported and record.demand is not None and record.demand.count_is_exact:
            sums.counted += 1
            sums.mismatched += record.prompt_tokens != record.prompt_tokens_reported
        if record.would is None:
            return
        if record.would.wait_s is None:
            sums.would_shed += 1
            return
        sums.would_hold += 1
        _count(sums.would_wait_s, record.would.wait_s)
        if record.replica is not None:
            sent_s = record.arrived_s + (record.queue_wait_s or 0.0)
            self._would_hold.append(_WouldHold(record.replica, sent_s, now_s, sums))

    def look(self) -> None:
        """See what was preempted since the last look, and answer what has waited for it."""
        now_s = self._clock.now_s()
        sums = self._now(now_s)
        for name, book in self._gate.fleet.books.items():
            total = book.feedback.preemptions_total
            more = total - self._preempted.get(name, 0)
            self._preempted[name] = total
            if more <= 0:
                continue
            self._changes.append((now_s, name))
            sums.preemptions[name] = sums.preemptions.get(name, 0) + more
            runs = any(lease.would is not None and lease.would.wait_s is not None for lease in book.ledger.leases.values())
            if runs or any(one.replica == name and now_s - one.ended_s <= LATE_S for one in self._would_hold):
                sums.preceded[name] = sums.preceded.get(name, 0) + more
        while self._would_hold and now_s - self._would_hold[0].ended_s > LATE_S:
            one = self._would_hold.popleft()
            one.sums.would_hold_ended += 1
            one.sums.would_hold_needless += not self._followed(one)
        while len(self._entries) > 1 and now_s - self._entries[1].begun_s > LATE_S:  # whoever ended in it has been answered for
            entry = self._entries.popleft()
            self._past.append(_Past(entry.begun_s, entry.mode, _pack(entry.sums)))

    def _followed(self, one: _WouldHold) -> bool:
        return any(one.sent_s <= at_s <= one.ended_s + LATE_S for at_s, replica in self._changes if replica == one.replica)

    def report(self, since_s: float) -> HistoryReport:
        """The last ``since_s`` seconds, by mode."""
        now_s = self._clock.now_s()
        gate = self._gate
        chosen: dict[str, list[Sums]] = {}
        entries: list[_Past | _Entry] = list(self._past)
        entries = (entries + list(self._entries))[-MINUTES_MAX:]
        ends_s = [entry.begun_s for entry in entries[1:]] + [now_s]
        for entry, end_s in zip(entries, ends_s, strict=True):
            if end_s > now_s - since_s:
                sums = entry.sums
                sums.seconds = min(end_s - entry.begun_s, MINUTE_S)
                chosen.setdefault(entry.mode.value, []).append(sums)
        modes = {mode: added(sums, proxies=False) for mode, sums in chosen.items()}
        known_s = min(since_s, now_s - self._begun_s)
        return HistoryReport(since_s, known_s, gate.mode.value, gate.policy.queue.wait_s_max, gate.policy.enforce_ratio, modes)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def _now(self, now_s: float) -> Sums:
        mode = self._gate.mode
        last = self._entries[-1] if self._entries else None
        if last is None or last.mode is not mode or now_s - last.begun_s >= MINUTE_S:
            last = _Entry(now_s, mode)
            self._entries.append(last)
        return last.sums


def _count(histogram: dict[str, int], value: float) -> None:
    key = str(bucket_of(value))
    histogram[key] = histogram.get(key, 0) + 1
