"""``/admin/live``: one proxy as people want to see it (``wire.live_report``).

The part that says how things are now is made at most every ``FRESH_S``, however many look on, from the ring's last look and from counts
that the gate keeps anyway; what grows with the queue is cut. Nobody looks: nothing is made.
"""

from itertools import islice
from math import inf
from typing import cast

import msgspec

from proxy import __version__
from proxy.core.override import MODE, Override
from proxy.core.replica import ReplicaPhase
from proxy.core.saturation import Binding
from proxy.core.wait_queue import WaitQueue
from proxy.core.waiting import Waiting
from proxy.ports.store import StorePhase
from proxy.serving.live_decisions import BINDING_NAMES, binding_words, ended_lines, open_lines
from proxy.serving.live_notices import notices_of, worst
from proxy.serving.live_ring import EVERY_S, UNKNOWN
from proxy.serving.services import Services
from proxy.serving.watcher import ReplicaWatcher
from proxy.wire.live_report import (
    Line,
    LiveReport,
    ModeNow,
    PolicyNow,
    ProxyNow,
    QueueNow,
    ReplicaNow,
    Sample,
    StoreNow,
    WaitingNow,
)
from proxy.wire.log_text import json_plain

FRESH_S = 0.4
TENANTS_MAX = 20
WAITING_MAX = 20
PROXIES_MAX = 64


class LiveView:
    """Makes the answers of one process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._run = services.request_id()
        self._made: LiveReport | None = None
        self._made_s = -inf

    def report(self, samples_after: int, ended_after: int) -> bytes:
        """One answer as JSON, with looks and ends after these numbers."""
        now_s = self._services.clock.now_s()
        if self._made is None or now_s - self._made_s >= FRESH_S:
            self._made, self._made_s = self._now(now_s), now_s
        made = msgspec.structs.replace(
            self._made,
            samples=cast("list[Sample]", self._services.ring.after(samples_after)),  # packed already
            decisions=[*self._made.decisions, *ended_lines(self._services.decisions, ended_after)],  # the end is the last word
            ended=self._services.decisions.ended_total,
        )
        return json_plain(msgspec.json.encode(made))

    def _now(self, now_s: float) -> LiveReport:
        services = self._services
        gate, counters = services.dispatcher.gate, services.dispatcher.gate.counters
        overrides = services.switches.overrides
        said = overrides.in_force(MODE, now_s)
        policy = services.live.state()
        replicas = [self._replica(watcher, name, now_s) for watcher in services.watchers.values() for name in watcher.names]
        notices = notices_of(services, replicas, now_s)
        return LiveReport(
            run=self._run,
            at_s=services.clock.wall_s(),
            up_s=now_s - services.ring.begun_s,
            version=__version__,
            proxy=services.request_ids.proxy,
            headline=self._headline(replicas, now_s),
            level=worst(notices),
            mode=ModeNow(
                gate.mode.value, gate.policy.mode.value, _said(said) if said else "", said.until_s - now_s if said else None
            ),
            policy=PolicyNow(policy.version, policy.file, policy.good_s, policy.faults, policy.at_restart),
            drain=services.drain.phase.value,
            changes_open=services.access.open,
            open_requests=gate.open_requests,
            admitted=counters.admitted,
            held=counters.held,
            shed=counters.shed,
            rerouted=counters.rerouted,
            queue=self._queue(now_s),
            replicas=replicas,
            notices=notices,
            decisions=open_lines(services.decisions, lambda model: binding_words(gate.fleet.of_model(model))),
            ended=0,
            sample_every_s=EVERY_S,
            samples=[],
            drains={name: _said(one) for name, one in overrides.drains(now_s).items()},
            proxies=self._proxies(),
            store=self._store(now_s),
        )

    def _headline(self, replicas: list[ReplicaNow], now_s: float) -> str:
        """The state in a sentence or two: what is wrong, and who waits."""
        services = self._services
        serving = sum(one.phase == ReplicaPhase.SERVING for one in replicas)
        wanted = [one for one in replicas if one.phase != ReplicaPhase.DRAINING]
        if not serving:
            return "No replica serves: requests are refused until one answers."
        said = []
        if services.guard.tripped:
            said.append("Requests are forwarded without admission.")
        if serving < len(wanted):
            missing = len(wanted) - serving
            said.append(f"{missing} of {len(replicas)} replicas {'does' if missing == 1 else 'do'} not serve.")
        if services.exchange is not None and services.exchange.sharing.phase is StorePhase.DEGRADED:
            said.append("The shared store is out of reach.")
        return " ".join([*said, self._load_words(now_s)])

    def _load_words(self, now_s: float) -> str:
        gate = self._services.dispatcher.gate
        waiting, served = len(gate.queue), gate.open_requests
        if waiting:
            bound = binding_words(book for book in gate.fleet.books.values() if book.phase is ReplicaPhase.SERVING)
            many = "1 request waits" if waiting == 1 else f"{waiting} requests wait"
            return f"{many}, the oldest {oldest_s(gate.queue, now_s):.1f} s. What binds: {bound or 'nothing any more'}."
        if not served:
            return "Idle: nobody is served, nobody waits."
        return f"{'1 request is' if served == 1 else f'{served} requests are'} being served, nobody waits."

    # ---- replicas

    def _replica(self, watcher: ReplicaWatcher, name: str, now_s: float) -> ReplicaNow:
        services = self._services
        gate = services.dispatcher.gate
        book = gate.fleet.books.get(name)
        phase = watcher.phase_seen(name)
        if book is None:
            return ReplicaNow(name, phase.value, enforced=False, fault=watcher.fault or "", words=_phase_words(phase))
        measured, estimated, peak, budget, capacity = services.ring.rows.get(name, UNKNOWN)
        binding = book.binding_last
        binds = phase is ReplicaPhase.SERVING and binding is not Binding.NONE and len(gate.queue) > 0
        words = _phase_words(phase) or (f"No room for the next in line: {BINDING_NAMES[binding]}" if binds else "")
        return ReplicaNow(
            name=name,
            phase=phase.value,
            enforced=book.spec.enforced,
            words=words or ("" if book.spec.enforced else "Only observed: its KV cache is not known"),
            fault=watcher.fault or "",
            binding=binding.value,
            binds=binds,
            capacity_blocks=capacity,
            budget_blocks=budget,
            measured_blocks=measured,
            estimated_blocks=estimated,
            unplaced_blocks=services.ring.unplaced.get(name),
            forecast_peak_blocks=peak,
            leases=len(book.ledger.leases),
            running=book.running,
            engine_waiting=book.waiting,
            seats=book.saturation.seats(now_s),
            preemptions=book.feedback.preemptions_total,
            age_s=book.sample_age_s(now_s),
        )

    # ---- the queue

    def _queue(self, now_s: float) -> QueueNow:
        queue, bounds = self._services.dispatcher.gate.queue, self._services.policy.queue
        tenants = sorted(queue.by_tenant.items(), key=lambda one: one[1], reverse=True)
        waiting = [self._waiting(entry, now_s) for entry in islice(queue.order(), WAITING_MAX)]
        return QueueNow(
            requests=len(queue),
            tokens=queue.tokens,
            oldest_s=oldest_s(queue, now_s),
            requests_max=bounds.requests_max,
            tokens_max=bounds.tokens_max,
            classes=[Line(name, *counts) for name, counts in queue.by_class.items() if counts[0]],
            tenants=[Line(name, *counts) for name, counts in tenants[:TENANTS_MAX]],
            tenants_more=max(0, len(tenants) - TENANTS_MAX),
            waiting=waiting,
            waiting_more=len(queue) - len(waiting),
        )

    def _waiting(self, entry: Waiting, now_s: float) -> WaitingNow:
        demand = entry.demand
        words = "has a promise" if entry.promised else "stands by"
        if entry.held_by:
            words = f"its tenant's share ({entry.held_by})"
        elif entry.reservation is not None:
            words = f"first of its line: has a place reserved on {entry.reservation.replica}"
        left_s = entry.start_by_s - now_s
        return WaitingNow(
            demand.traffic_class, demand.tenant, demand.length_class.model, demand.prompt_tokens, now_s - entry.enqueued_s,
            left_s if left_s < inf else None, words,
        )  # fmt: skip

    # ---- the others

    def _store(self, now_s: float) -> StoreNow | None:
        exchange = self._services.exchange
        if exchange is None:
            return None
        sharing = exchange.sharing
        return StoreNow(
            sharing.store.shown, sharing.phase.value, now_s - sharing.changed_s, sharing.last_error or "",
            sharing.member.clock.round_trip_s,
        )  # fmt: skip

    def _proxies(self) -> list[ProxyNow]:
        exchange = self._services.exchange
        if exchange is None:
            return []
        ours = exchange.sharing.member.name
        cards = exchange.proxies[:PROXIES_MAX]
        return [ProxyNow(card.proxy, card.admin, card.mode, card.version, card.proxy == ours) for card in cards]


PHASE_WORDS = {
    ReplicaPhase.PROBING: "Not heard of yet",
    ReplicaPhase.UNREACHABLE: "Does not answer: nobody is sent there",
    ReplicaPhase.DRAINING: "Drains: nobody new is sent there",
    ReplicaPhase.EJECTED: "Failed requests: left alone for a moment",
    ReplicaPhase.STALLED: "Takes connections and answers nothing: nobody is sent there",
    ReplicaPhase.WEDGED: "Answers and does nothing: nobody is sent there",
}


def oldest_s(queue: WaitQueue, now_s: float) -> float:
    """Age of the longest wait; 0 where nobody waits."""
    return max((now_s - entry.enqueued_s for entry in queue.entries()), default=0.0)


def _phase_words(phase: ReplicaPhase) -> str:
    return PHASE_WORDS.get(phase, "")


def _said(one: Override) -> str:
    return f"by {one.by}: {one.reason}"
