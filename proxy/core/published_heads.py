"""The heads of one proxy's queue as the store knows them: told when others came to be the heads, and anew while any waits.

Fails: a head published a moment ago may have got its place meanwhile; the store drops it with the grant.
"""

from proxy.core.gate import Gate
from proxy.core.several import Several
from proxy.core.store_calls import CallHeads


class PublishedHeads:
    """What was published of ``gate``'s queue under the proxy's ``name``."""

    def __init__(self, gate: Gate, several: Several, name: str) -> None:
        self._gate = gate
        self._several = several
        self._name = name
        self._ids: tuple[str, ...] = ()  # of the heads that were published, in order
        self._replicas: set[str] = set()  # for which some were

    def _heads(self) -> tuple[str, ...]:
        return tuple(entry.demand.request_id for entry in self._gate.queue.heads()) if len(self._gate.queue) else ()

    @property
    def published(self) -> bool:
        """Whether the store has any of ours."""
        return bool(self._ids)

    @property
    def changed(self) -> bool:
        """Whether others are the heads than those that were published."""
        return self._heads() != self._ids

    def calls(self, now_s: float, *, every: bool) -> list[CallHeads]:
        """What is to be published now: what changed, and with ``every`` whatever waits."""
        ids = self._heads()
        if ids == self._ids and not (every and ids):
            return []
        self._ids = ids
        heads = {name: found for name, found in self._several.heads(now_s).items() if found} if ids else {}
        told = sorted(self._replicas | heads.keys())
        self._replicas = set(heads)
        return [CallHeads(self._name, replica, heads.get(replica, [])) for replica in told]
