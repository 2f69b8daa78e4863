"""z starts where the load says, rests where preemptions per completion meet the aim, stays within its limits, and does not wind up."""

import pytest

from proxy.core.feedback import AIM_RATIO, BURST_PAUSE_S, BURST_PREEMPTIONS, CLUSTER_MAX, CLUSTER_S, STEP, Feedback


def feedback(target: float = 0.005, z_min: float = 0.5, z_max: float = 3.5) -> Feedback:
    return Feedback(target_ratio=target, z_min=z_min, z_max=z_max)


def loaded(sequences: int, prompt: float, output: float, one: Feedback | None = None) -> Feedback:
    """One that has seen the load, without anybody waiting for KV."""
    one = one or feedback()
    for _ in range(1000):
        one.completed(prompt, output, kv_limited=False)
    for _ in range(200):
        one.load(sequences, 1.0, kv_limited=True)
    return one


def test_the_prior_follows_growth_and_the_size_of_the_pool() -> None:
    """The z at which such loads preempted five in a thousand in an engine model, within half a unit."""
    chat, chat_large = loaded(34, 800, 275).z, loaded(175, 800, 275).z
    rag, reasoning, reasoning_large = loaded(20, 4500, 190).z, loaded(29, 340, 1840).z, loaded(150, 340, 1840).z
    assert chat == pytest.approx(1.0, abs=0.5)
    assert reasoning == pytest.approx(2.3, abs=0.5)
    assert reasoning_large == pytest.approx(2.2, abs=0.3)
    assert rag < chat < reasoning_large < reasoning
    assert chat_large < chat


def test_at_the_aim_z_stays() -> None:
    one = feedback(target=0.01 / AIM_RATIO)
    loaded(30, 300, 1000, one)
    z, at_s = one.z, 0.0
    for _ in range(20):
        at_s += 2.0 * CLUSTER_S
        one.preempted(1, at_s)
        for _ in range(100):
            one.completed(300, 1000, kv_limited=True)
    assert one.z == pytest.approx(z, abs=STEP)


def test_below_the_aim_it_relaxes_above_it_tightens() -> None:
    few, many = loaded(30, 300, 1000), loaded(30, 300, 1000)
    z, at_s = few.z, 0.0
    for _ in range(300):
        few.completed(300, 1000, kv_limited=True)
        many.completed(300, 1000, kv_limited=True)
    for _ in range(6):
        at_s += 2.0 * CLUSTER_S
        many.preempted(1, at_s)
    assert few.z < z < many.z


def test_an_idle_replica_proves_nothing() -> None:
    one = loaded(30, 300, 1000)
    z = one.z
    for _ in range(10_000):
        one.completed(300, 1000, kv_limited=False)
    assert one.z == pytest.approx(z, abs=1e-3)
    assert one.delta == 0.0


def test_z_keeps_its_limits_and_leaves_them_at_once() -> None:
    """Anti-windup: however long it stood at a limit, the first event the other way moves it."""
    one = loaded(30, 300, 1000)
    for index in range(1000):
        one.preempted(1, 10.0 * index)
    assert one.z == pytest.approx(one.z_max)
    one.completed(300, 1000, kv_limited=True)
    assert one.z < one.z_max
    for _ in range(30_000):
        one.completed(300, 1000, kv_limited=True)
    assert one.z == pytest.approx(one.z_min)
    one.preempted(1, 1e9)
    assert one.z > one.z_min + STEP / 2.0


@pytest.mark.parametrize(("z_min", "z_max"), [(0.0, 0.5), (3.0, 3.5), (1.0, 1.0)])
def test_the_start_lies_within_the_limits(z_min: float, z_max: float) -> None:
    assert z_min <= feedback(z_min=z_min, z_max=z_max).z <= z_max


def test_forecasts_that_were_off_widen_the_margin() -> None:
    one, other = loaded(30, 300, 1000), loaded(30, 300, 1000)
    other.load(30, 1.3, kv_limited=True)
    assert other.z == pytest.approx(1.3 * one.z, abs=0.01)


def test_sequences_of_a_pool_with_room_do_not_count() -> None:
    """A quiet hour must not make the next rush start with the margin of a small pool."""
    one = loaded(150, 340, 1840)
    z = one.z
    for _ in range(1000):
        one.load(2, 1.0, kv_limited=False)
    assert one.z == z
    for _ in range(1000):
        one.load(29, 1.0, kv_limited=True)
    assert one.z > z + 0.1


def test_only_a_burst_pauses() -> None:
    one = feedback()
    one.preempted(BURST_PREEMPTIONS - 1, 7.0)
    assert one.burst_until_s < 7.0
    one.preempted(BURST_PREEMPTIONS, 8.0)
    assert one.burst_until_s == 8.0 + BURST_PAUSE_S


def test_a_cluster_is_one_piece_of_evidence_but_counted_whole() -> None:
    """However its victims come: at once, or one scrape after another."""
    one, other = feedback(z_max=1e9), feedback(z_max=1e9)
    one.preempted(1000, 0.0)
    for index in range(1000):
        other.preempted(1, 0.5 * CLUSTER_S * index)
    assert one.preemptions_total == other.preemptions_total == 1000
    assert one.delta == other.delta == pytest.approx(CLUSTER_MAX * STEP)
