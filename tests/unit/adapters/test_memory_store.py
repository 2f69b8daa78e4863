"""One process's leases: granted at once, each id once, ended idempotently."""

from proxy.adapters.memory_store import MemoryStore


def test_every_lease_is_granted_once_and_ended_once() -> None:
    store, answers = MemoryStore(), list[bool]()
    store.reserve("a", "1", answers.append)
    store.reserve("b", "1", answers.append)  # ids belong to a replica
    assert (answers, store.leases_held()) == ([True, True], 2)
    store.reserve("a", "1", answers.append)
    assert (answers[-1], store.leases_held()) == (False, 2)
    store.release("a", "1")
    store.release("a", "1")
    store.release("a", "unknown")
    assert store.leases_held() == 1
    store.reserve("a", "1", answers.append)
    assert (answers[-1], store.leases_held()) == (True, 2)


def test_the_answer_may_release_at_once() -> None:
    store = MemoryStore()
    store.reserve("a", "1", lambda granted: store.release("a", "1") if granted else None)
    assert store.leases_held() == 0
