"""The lease store of one proxy: nothing is shared, so the gate's own ledger is the truth and every reservation is granted at once.

It keeps the set of leases that are out, so that tests and metrics can tell a lease that never ended.
"""

from collections.abc import Callable, Sequence

from proxy.core.events import Event, Granted, Refused, Reserve


class MemoryStore:
    """``ports.LeaseStore`` for a single process."""

    def __init__(self) -> None:
        self._held: set[tuple[str, str]] = set()

    def reserve(self, effect: Reserve, done: Callable[[Sequence[Event]], None]) -> None:
        """Grant it; refuse an id that is already held."""
        key = (effect.lease.replica, effect.lease.lease_id)
        fresh = key not in self._held
        self._held.add(key)
        done([Granted(effect.request_id) if fresh else Refused(effect.request_id)])

    def release(self, replica: str, lease_id: str) -> None:
        """End it; unknown ids are ignored."""
        self._held.discard((replica, lease_id))

    def looked(self) -> None:
        """Nobody else cares who waits."""

    def leases_held(self) -> int:
        """Reservations not yet released."""
        return len(self._held)
