"""Which replica takes a request that needs no place: by least outstanding requests, as plain forwarding would do it well."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from proxy.core.replica import AWAITED_PHASES, ReplicaPhase
from proxy.serving.dispatcher import Dispatcher
from proxy.serving.watcher import ReplicaWatcher


class Outstanding:
    """Counts what was sent outside the gate, and picks the replica with the least of both."""

    def __init__(self, dispatcher: Dispatcher, watchers: Mapping[str, ReplicaWatcher]) -> None:
        self._dispatcher = dispatcher
        self._watchers = watchers
        self._count: Counter[str] = Counter()  # names come and go

    def load(self, model: str | None = None, excluded: frozenset[str] = frozenset()) -> dict[str, int]:
        """Requests outstanding per usable replica; stalled, ejected and wedged ones only when no other serves, the rest only after those.

        None that is being drained; one that is coming back only as far as it may, unless it is the only one.
        """
        kept = [
            (watcher, watcher.standing.phase) for name, watcher in self._watchers.items()
            if name not in excluded and not watcher.draining and self._serves(watcher, model)
        ]  # fmt: skip
        usable = [watcher for watcher, phase in kept if phase is ReplicaPhase.SERVING and not watcher.standing.wedged]
        usable = usable or [watcher for watcher, phase in kept if phase in AWAITED_PHASES] or [watcher for watcher, _ in kept]
        loads = [(watcher, self._on(watcher)) for watcher in usable]
        unspared = [(watcher, count) for watcher, count in loads if not watcher.standing.spared(count)]
        return {watcher.name: count for watcher, count in unspared or loads}

    def on(self, name: str) -> int:
        """Requests of ours that the replica has now: 0 once a drained one has finished."""
        return self._on(self._watchers[name])

    def _on(self, watcher: ReplicaWatcher) -> int:
        books, count = self._dispatcher.gate.fleet.books, self._count.get(watcher.name, 0)
        for name in watcher.names:
            if name in books:
                count += len(books[name].ledger.leases)
        return count

    @property
    def under_way(self) -> int:
        """Requests of ours that all replicas have now."""
        return self._count.total() + self._dispatcher.gate.open_requests

    @staticmethod
    def _serves(watcher: ReplicaWatcher, model: str | None) -> bool:
        return model is None or watcher.facts is None or model in watcher.facts.models

    def least(self, model: str | None = None, excluded: frozenset[str] = frozenset()) -> str | None:
        """The replica to send to; None when there is none."""
        load = self.load(model, excluded)
        return min(load, key=lambda name: load[name], default=None)

    @contextmanager
    def sent(self, name: str) -> Iterator[None]:
        """One request is out on ``name``."""
        self._count[name] += 1
        try:
            yield
        finally:
            self._count[name] -= 1
            if not self._count[name]:
                del self._count[name]

    def busy(self, name: str) -> bool:
        """Whether any request is out on ``name`` without the gate's knowing."""
        return self._count[name] > 0
