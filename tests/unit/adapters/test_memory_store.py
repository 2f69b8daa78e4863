"""One process's leases: granted at once, each id once, ended idempotently."""

from collections.abc import Callable, Sequence

from proxy.adapters.memory_store import MemoryStore
from proxy.core.events import Event, Granted, Refused, Reserve
from proxy.core.lease import Lease
from tests.support.builders import demand


def ask(store: MemoryStore, replica: str, lease_id: str, done: Callable[[Sequence[Event]], None]) -> None:
    """Reserve as the dispatcher does."""
    lease = Lease(lease_id, demand(lease_id), replica, output_tokens_max=1, sent_s=0.0, sent_steps=0.0)
    store.reserve(Reserve(lease_id, lease), done)


def test_every_lease_is_granted_once_and_ended_once() -> None:
    store, answers = MemoryStore(), list[Event]()
    ask(store, "a", "1", answers.extend)
    ask(store, "b", "1", answers.extend)  # ids belong to a replica
    assert (answers, store.leases_held()) == ([Granted("1"), Granted("1")], 2)
    ask(store, "a", "1", answers.extend)
    assert (answers[-1], store.leases_held()) == (Refused("1"), 2)
    store.release("a", "1")
    store.release("a", "1")
    store.release("a", "unknown")
    assert store.leases_held() == 1
    ask(store, "a", "1", answers.extend)
    assert (answers[-1], store.leases_held()) == (Granted("1"), 2)


def test_the_answer_may_release_at_once() -> None:
    store = MemoryStore()
    ask(store, "a", "1", lambda events: store.release("a", "1") if events == [Granted("1")] else None)
    assert store.leases_held() == 0
