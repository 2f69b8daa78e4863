"""The judge of refusals, on worlds whose fates are known."""

from collections.abc import Sequence

import pytest

from proxy.core.outcome import Outcome
from proxy.core.replica import ReplicaSample, ReplicaSpec
from proxy.sim.admission import Ways
from proxy.sim.counterfactual import Replay, judge_shedding, with_shedding
from proxy.sim.figures import Targets
from proxy.sim.sim_request import SimRequest
from proxy.sim.world import Listed, World, WorldSettings
from tests.support.worlds import figures, honest, pool


class Refusing:
    """Refuses every second request after ``after_s``; a spared one it forwards after ``kept_s``."""

    queued = 0

    def __init__(self, spared: frozenset[str], kept_s: float, after_s: float) -> None:
        self._spared, self._kept_s, self._after_s = spared, kept_s, after_s
        self._count = 0

    def start(self, world: Ways, replicas: Sequence[ReplicaSpec]) -> None:
        """Remember the world."""
        self._world, self._replica = world, replicas[0].name

    def arrive(self, request: SimRequest, deadline_s: float) -> None:
        """Forward or refuse."""
        del deadline_s
        world, name = self._world, request.request_id
        self._count += 1
        if self._count % 2:
            world.forward(name, self._replica)
        elif name in self._spared:
            world.at(world.now_s + self._kept_s, lambda: world.forward(name, self._replica))
        else:
            world.at(world.now_s + self._after_s, lambda: world.shed(name, Outcome.QUEUE_TIMEOUT, 1.0))

    def observe(self, sample: ReplicaSample) -> None:
        """It does not look."""

    def progress(self, request_id: str, output_tokens: int) -> None:
        """It does not look."""

    def ended(self, request_id: str, output_tokens: int, *, natural: bool) -> None:
        """It does not look."""


def replayed(kept_s: float, after_s: float) -> Replay:
    def build(spared: frozenset[str], until_s: float) -> World:
        workload = [honest(f"q{index}", 100, 20, 0.5 * index) for index in range(20)]
        settings = WorldSettings(engine=pool(), wait_s_max=4.0, until_s=until_s)
        return World(settings, Refusing(spared, kept_s, after_s), Listed(workload))

    return build


@pytest.mark.parametrize(
    ("kept_s", "after_s", "precision", "recall", "early"),
    [
        (30.0, 0.1, 1.0, 1.0, 10),  # kept, they would not have been served
        (0.5, 0.1, 0.0, 0.0, 10),  # kept, they would
        (30.0, 3.9, None, None, 0),  # told when it was of no use any more
    ],
)
def test_refusals_are_judged_by_what_becomes_of_the_kept(
    kept_s: float, after_s: float, precision: float | None, recall: float | None, early: int
) -> None:
    build = replayed(kept_s, after_s)
    judged = judge_shedding(build(frozenset(), 1e6).run(), build, Targets(), sample=4, seed=1)
    assert (judged.precision, judged.recall, judged.early, judged.late) == (precision, recall, early, 10 - early)
    assert judged.wait_ratio_p50 == pytest.approx(after_s / 4.0)
    assert judged.judged == (4 if early else 0)


def test_a_sample_of_none_judges_nothing() -> None:
    build = replayed(1.0, 0.1)
    world = build(frozenset(), 1e6).run()
    judged = judge_shedding(world, build, Targets(), sample=0, seed=1)
    assert (judged.precision, judged.recall, judged.judged, judged.early) == (None, None, 0, 10)
    assert with_shedding(figures(world), judged).shed_precision is None


def test_the_figures_take_it_in() -> None:
    build = replayed(30.0, 0.1)
    world = build(frozenset(), 1e6).run()
    both = with_shedding(figures(world), judge_shedding(world, build, Targets(), sample=2, seed=1))
    assert both.shed_precision == 1.0
    assert both.as_dict()["shed_recall"] == 1.0
    assert both.as_dict()["shed_wait_ratio_p50"] == pytest.approx(0.025)
