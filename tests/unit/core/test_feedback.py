"""z rests where preemptions per completion meet the target, stays within its limits, and does not wind up."""

import pytest

from proxy.core.feedback import BURST_PAUSE_S, BURST_PREEMPTIONS, STEP, Feedback


def feedback(target: float = 0.01, z_min: float = 0.5, z_max: float = 3.5) -> Feedback:
    return Feedback(target_ratio=target, z_min=z_min, z_max=z_max)


def test_at_the_target_z_stays() -> None:
    one = feedback(target=0.01)
    z = one.z
    for _ in range(20):
        one.preempted(1, 0.0)
        for _ in range(100):
            one.completed(kv_limited=True)
    assert one.z == pytest.approx(z, abs=STEP)


def test_below_the_target_it_relaxes_above_it_tightens() -> None:
    few, many = feedback(), feedback()
    z = few.z
    for _ in range(300):
        few.completed(kv_limited=True)
        many.completed(kv_limited=True)
    for _ in range(6):  # the target allows three
        many.preempted(1, 0.0)
    assert few.z < z < many.z


def test_one_preemption_weighs_as_much_as_target_to_the_minus_one_completions() -> None:
    one = feedback(target=0.02)
    z = one.z
    one.preempted(1, 0.0)
    for _ in range(50):
        one.completed(kv_limited=True)
    assert one.z == pytest.approx(z)


def test_an_idle_replica_proves_nothing() -> None:
    one = feedback()
    z = one.z
    for _ in range(10_000):
        one.completed(kv_limited=False)
    assert one.z == z


def test_z_keeps_its_limits_and_leaves_them_at_once() -> None:
    """Anti-windup: however long it stood at a limit, the first event the other way moves it."""
    one = feedback()
    for _ in range(1000):
        one.preempted(1, 0.0)
    assert one.z == one.z_max
    one.completed(kv_limited=True)
    assert one.z < one.z_max
    for _ in range(100_000):
        one.completed(kv_limited=True)
    assert one.z == one.z_min
    one.preempted(1, 0.0)
    assert one.z > one.z_min


@pytest.mark.parametrize(("z_min", "z_max"), [(0.0, 0.5), (3.0, 3.5), (1.0, 1.0)])
def test_the_start_lies_within_the_limits(z_min: float, z_max: float) -> None:
    assert z_min <= feedback(z_min=z_min, z_max=z_max).z <= z_max


def test_only_a_burst_pauses() -> None:
    one = feedback()
    one.preempted(BURST_PREEMPTIONS - 1, 7.0)
    assert one.burst_until_s < 7.0
    one.preempted(BURST_PREEMPTIONS, 8.0)
    assert one.burst_until_s == 8.0 + BURST_PAUSE_S


def test_a_cluster_is_one_piece_of_evidence_but_counted_whole() -> None:
    one, other = feedback(z_max=1e9), feedback(z_max=1e9)
    one.preempted(1000, 0.0)
    other.preempted(10, 0.0)
    assert one.preemptions_total == 1000
    assert one.z <= other.z + 10 * STEP
