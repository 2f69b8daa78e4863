"""What somebody who looks on should know first, in words: one sentence each, the worst first.

Levels: *error*, requests fail or are in danger; *warning*, something is not as it should be; *note*, somebody said so or nothing is
decided. A list is cut: at ``NAMES_MAX`` names the rest is counted.
"""

from collections.abc import Iterable, Iterator

from proxy.core.outcome import Mode
from proxy.core.override import MODE
from proxy.core.replica import ReplicaPhase
from proxy.ports.store import StorePhase
from proxy.serving.drain import DrainPhase
from proxy.serving.services import Services
from proxy.wire.live_report import Notice, ReplicaNow

ERROR, WARNING, NOTE, OK = "error", "warning", "note", "ok"
NAMES_MAX = 4
STALE_S = 5.0  # ten scrapes
FAULT_CHARS_MAX = 300

DOWN = {
    ReplicaPhase.UNREACHABLE: "answer nothing",
    ReplicaPhase.STALLED: "take connections and answer nothing",
    ReplicaPhase.WEDGED: "answer and do nothing",
    ReplicaPhase.EJECTED: "failed requests and are left alone for a moment",
    ReplicaPhase.PROBING: "were not heard of yet",
}


def worst(notices: Iterable[Notice]) -> str:
    """The worst of their levels; ``ok`` where there are none."""
    levels = {notice.level for notice in notices}
    return next((level for level in (ERROR, WARNING, NOTE) if level in levels), OK)


def notices_of(services: Services, replicas: list[ReplicaNow], now_s: float) -> list[Notice]:
    """All of them, the worst first."""
    found = [*_process(services, now_s), *_policy(services), *_store(services, now_s), *_replicas(services, replicas)]
    return sorted(found, key=lambda notice: (ERROR, WARNING, NOTE).index(notice.level))


def _process(services: Services, now_s: float) -> Iterator[Notice]:
    if services.guard.tripped:
        words = "Faults inside kvgate: requests are forwarded without admission, under a fixed number per replica, until they are gone."
        yield Notice(ERROR, "guard_tripped", words)
    if services.drain.phase is not DrainPhase.SERVING:
        yield Notice(WARNING, "draining", f"This process is ending: it is {services.drain.phase.value} requests.")
    if services.loading():
        yield Notice(NOTE, "tokenizer_loading", "A tokenizer is being loaded: until then prompts are counted by their length.")
    gate = services.dispatcher.gate
    said = services.switches.overrides.in_force(MODE, now_s)
    why = "the policy file says so" if said is None else f"by {said.by}: {said.reason}"
    if gate.mode is Mode.OFF:
        yield Notice(WARNING, "mode_off", f"Mode off: requests are only forwarded, nobody is held or refused ({why}).")
    elif gate.mode is Mode.OBSERVE:
        yield Notice(
            NOTE, "mode_observe", f"Mode observe: nobody is held or refused; decisions tell what enforcing would do ({why})."
        )
    elif said is not None:
        yield Notice(NOTE, "mode_override", f"The mode is set by hand ({why}).")


def _policy(services: Services) -> Iterator[Notice]:
    live = services.live
    if live.faults:
        more = f" (and {len(live.faults) - 1} more)" if len(live.faults) > 1 else ""
        yield Notice(
            ERROR, "policy_bad", f"The policy file has faults, what it said before still rules: {_cut(live.faults[0])}{more}"
        )
    if live.at_restart:
        yield Notice(NOTE, "policy_at_restart", f"Keys that wait for a restart: {', '.join(live.at_restart)}.")
    discovery = services.discoverer.state()
    if discovery is not None and discovery.fault is not None:
        words = f"The source of replicas does not answer, those it told last stand: {_cut(discovery.fault)}"
        yield Notice(WARNING, "discovery_failed", words)


def _store(services: Services, now_s: float) -> Iterator[Notice]:
    exchange = services.exchange
    if exchange is None:
        return
    sharing = exchange.sharing
    since_s = now_s - sharing.changed_s
    if sharing.phase is StorePhase.DEGRADED:
        error = f": {_cut(sharing.last_error)}" if sharing.last_error else ""
        words = f"The shared store has been out of reach for {since_s:.0f} s, this proxy fills only its own share of every replica{error}"
        yield Notice(ERROR, "store_degraded", words)
    elif sharing.phase is StorePhase.RECOVERING:
        yield Notice(
            WARNING, "store_recovering", f"The shared store answers again; its rows are being written anew for {since_s:.0f} s."
        )
    differing = exchange.differing()
    if differing:
        yield Notice(
            WARNING, "policies_differ", f"Another policy or version rules at {_names([one.proxy for one in differing])}."
        )


def _replicas(services: Services, replicas: list[ReplicaNow]) -> Iterator[Notice]:
    for phase, words in DOWN.items():
        names = [one.name for one in replicas if one.phase == phase]
        if names:
            level = NOTE if phase is ReplicaPhase.PROBING else ERROR
            fault = next((one.fault for one in replicas if one.phase == phase and one.fault), "")
            said = f"Replicas that {words}: {_names(names)}."
            yield Notice(level, f"replicas_{phase.value}", f"{said} {_cut(fault)}" if fault else said)
    drained = [one.name for one in replicas if one.phase == ReplicaPhase.DRAINING]
    if drained:
        yield Notice(NOTE, "replicas_draining", f"Replicas that are drained: {_names(drained)}.")
    serving = [one for one in replicas if one.phase == ReplicaPhase.SERVING]
    stale = [one.name for one in serving if one.age_s is not None and one.age_s > STALE_S]
    if stale:
        yield Notice(WARNING, "measurements_stale", f"Replicas measured more than {STALE_S:.0f} s ago: {_names(stale)}.")
    unknown = [one.name for one in serving if not one.enforced]
    if unknown:
        yield Notice(
            WARNING, "replicas_observed", f"Replicas that are only observed, for their KV cache is not known: {_names(unknown)}."
        )
    second = [name for watcher in services.watchers.values() for name in watcher.names if watcher.second_proxy(name)]
    if second:
        words = f"As much bypasses this proxy as goes through it on {_names(second)}. Another kvgate? Give all of them the same --redis."
        yield Notice(WARNING, "second_proxy", words)


def _names(names: list[str]) -> str:
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def _cut(text: str) -> str:
    return text if len(text) <= FAULT_CHARS_MAX else f"{text[:FAULT_CHARS_MAX]}…"
