"""What kvgate answers itself: for the fleet, where an engine would answer for itself."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import msgspec

from proxy import __version__
from proxy.core.outcome import Outcome, Refusal
from proxy.core.override import MODE
from proxy.core.replica import ModelCard, ReplicaPhase
from proxy.ports.store import StorePhase
from proxy.serving.drain import DrainPhase
from proxy.serving.exposition import exposition
from proxy.serving.services import Services
from proxy.wire.answers import Answer
from proxy.wire.log_text import json_plain

JSON = (b"content-type", b"application/json")


def json_answer(status: int, value: object) -> Answer:
    """An answer of our own."""
    body = json_plain(msgspec.json.encode(value))
    return Answer(status, (JSON, (b"content-length", b"%d" % len(body))), body)


@dataclass(frozen=True, slots=True)
class OwnRoutes:
    """The answers to ``wire.routes.OWN_PATHS``."""

    services: Services

    async def answer(self, path: str) -> Answer:
        """The answer to one of the paths."""
        if path == "/metrics":
            self.services.ended.tell()
            return await exposition(self.services.telemetry, self.services.clock, self.services.workers)
        answers: dict[str, Callable[[], Answer]] = {
            "/health": self.health,
            "/ready": self.ready,
            "/version": self.version,
            "/load": self.load,
            "/v1/models": self.models,
        }
        return answers[path]()

    def health(self) -> Answer:
        """The process lives."""
        return json_answer(200, {"status": "alive"})

    def ready(self) -> Answer:
        """200 from the first probe until drain; saturation and dead replicas show in the body, not in the status."""
        services = self.services
        probed = any(watcher.facts is not None for watcher in services.watchers.values())
        phase = services.drain.phase
        gate = services.dispatcher.gate
        state = {
            "ready": probed and not services.loading() and phase is DrainPhase.SERVING,
            "drain": phase,
            "mode": gate.mode,
            "policy": {"version": services.live.version, "faults": services.live.faults, "at_restart": services.live.at_restart},
            "guard_tripped": services.guard.tripped,
            "queued": len(gate.queue),
            "replicas": {name: {"phase": watcher.phase, "fault": watcher.fault} for name, watcher in services.watchers.items()},
        }
        said = services.switches.overrides.in_force(MODE, now_s := services.clock.now_s())
        if said is not None:
            state["override"] = {"mode": said.word, "by": said.by, "reason": said.reason, "left_s": said.until_s - now_s}
        discovery = services.discoverer.state()
        if discovery is not None:
            state["discovery"] = asdict(discovery)
        if services.exchange is not None:
            sharing = services.exchange.sharing
            state["store"] = {
                "phase": sharing.phase,
                "error": None if sharing.phase is StorePhase.SHARING else sharing.last_error,
                "proxies": len(services.exchange.proxies),
                "policies_differ": [card.proxy for card in services.exchange.differing()],
            }
        return json_answer(200 if state["ready"] else 503, state)

    def version(self) -> Answer:
        """vLLM's version under the engine's own key, the lowest where replicas differ; null while none is known."""
        found = {name: watcher.facts.version for name, watcher in self.services.watchers.items() if watcher.facts is not None}
        known = [version for version in found.values() if version is not None]
        return json_answer(200, {"version": min(known, key=_in_order, default=None), "kvgate": __version__, "replicas": found})

    def load(self) -> Answer:
        """Requests of this proxy that replicas work on, under the engine's own key, and those that wait here."""
        services = self.services
        load = {name: services.outstanding.on(name) for name in services.watchers}
        queued = len(services.dispatcher.gate.queue)
        return json_answer(200, {"server_load": sum(load.values()), "queued": queued, "replicas": load})

    def models(self) -> Answer:
        """The union over replicas, last known of those that are gone; the least ``max_model_len`` of those that serve a model now.

        A card is the engine's own otherwise. 503 while no replica has told any.
        """
        watchers = [watcher for watcher in self.services.watchers.values() if watcher.facts is not None]
        watchers.sort(key=lambda watcher: watcher.phase is not ReplicaPhase.SERVING)  # theirs are the cards that are shown
        cards: dict[str, tuple[bool, ModelCard]] = {}
        for watcher in watchers:
            assert watcher.facts is not None
            serving = watcher.phase is ReplicaPhase.SERVING
            for card in watcher.facts.cards:
                seen, shown = cards.setdefault(card.name, (serving, card))
                shortest = shown.context_tokens_max or 0
                if seen == serving and card.context_tokens_max is not None and card.context_tokens_max < shortest:
                    cards[card.name] = serving, card
        if not cards:
            message = "No replica has told its models yet."
            refusal = Refusal(Outcome.NO_REPLICA, gate="replicas", message=message, retry_after_s=1.0)
            return self.services.refused(refusal)
        return json_answer(200, {"object": "list", "data": [msgspec.Raw(card.json_text.encode()) for _, card in cards.values()]})


def _in_order(version: str) -> tuple[int, ...]:
    parts = version.split("+", maxsplit=1)[0].split(".")
    return tuple(int("".join(sign for sign in part if sign.isdecimal())[:9] or 0) for part in parts)
