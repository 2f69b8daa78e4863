"""Was it right to refuse them? The same trace again, with one refused request kept in its place.

*Early* is who was refused within ``EARLY_RATIO`` of the time it could wait. ``shed_precision`` is the share of the early ones that, kept,
would have missed all the same: no first token by the deadline. It is judged on a sample, one replay each up to the deadline of the kept
request; that request is not shed before its deadline, and everything else is decided anew. Who missed without being told early waited in
vain, or was served too late:

    shed_recall = p * early / (p * early + missed otherwise)        p = shed_precision

Fails: in a replay others decide differently after the kept one came, so each verdict has its own luck; the sample averages over it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from proxy.core.outcome import Outcome
from proxy.sim.figures import Figures, Targets
from proxy.sim.percentile import percentile
from proxy.sim.sim_request import SimResult
from proxy.sim.world import World

Replay = Callable[[frozenset[str], float], World]
"""Builds the same world again, unrun: the ids to keep, and the time at which it may end."""

EARLY_RATIO = 0.1
AFTER_S = 1.0  # beyond the deadline, so that what was about to happen has happened
JUDGED_OUTCOMES = {Outcome.QUEUE_TIMEOUT, Outcome.QUEUE_FULL, Outcome.DISPLACED, Outcome.TENANT_RATE, Outcome.TENANT_SHARE}


@dataclass(frozen=True, slots=True)
class ShedFigures:
    """None where nobody was shed or judged. ``wait_ratio_p50`` is the median time to be shed over the time the request could wait."""

    early: int
    late: int
    missed: int
    judged: int
    precision: float | None
    recall: float | None
    wait_ratio_p50: float | None


def judge_shedding(world: World, replay: Replay, targets: Targets, *, sample: int, seed: int) -> ShedFigures:
    """Look back at a world that has run. ``sample`` refused requests are replayed; 0 judges none."""
    shed = [one for one in world.results.values() if one.outcome in JUDGED_OUTCOMES]
    ratios = {one.request.request_id: waited_ratio(world, one, targets) for one in shed}
    early = [one for one in shed if ratios[one.request.request_id] <= EARLY_RATIO]
    chosen = Random(seed).sample(early, min(sample, len(early)))
    right = sum(missed_if_kept(one, replay, allowed_s(world, one, targets)) for one in chosen)
    precision = right / len(chosen) if chosen else None
    missed = sum(one.outcome is Outcome.COMPLETED and not on_time(world, one, targets) for one in world.results.values())
    recall = None
    if precision is not None:
        certain = precision * len(early)
        recall = certain / max(1e-9, certain + len(shed) - len(early) + missed)
    return ShedFigures(
        len(early), len(shed) - len(early), missed, len(chosen), precision, recall, percentile(ratios.values(), 0.5)
    )  # fmt: skip


def allowed_s(world: World, result: SimResult, targets: Targets) -> float:
    """Seconds from arrival in which the first token must come."""
    wait_s = result.request.wait_s_max
    return min(world.settings.wait_s_max if wait_s is None else wait_s, result.request.ttft_s or targets.ttft_s)


def waited_ratio(world: World, result: SimResult, targets: Targets) -> float:
    """How much of its time a refused request was left waiting."""
    assert result.end_s is not None, result
    return (result.end_s - result.arrived_s) / max(allowed_s(world, result, targets), 1e-9)


def on_time(world: World, result: SimResult, targets: Targets) -> bool:
    """Whether the first token came in time."""
    return result.first_s is not None and result.first_s - result.arrived_s <= allowed_s(world, result, targets)


def missed_if_kept(result: SimResult, replay: Replay, within_s: float) -> bool:
    """Play the trace again with this one kept, until its fate is known."""
    name = result.request.request_id
    again = replay(frozenset({name}), result.arrived_s + within_s + AFTER_S).run().results[name]
    assert again.arrived_s == result.arrived_s, (
        f"{name} came at {again.arrived_s} s in the replay and at {result.arrived_s} s before"
    )
    return again.first_s is None or again.first_s - again.arrived_s > within_s


def with_shedding(figures: Figures, judged: ShedFigures) -> Figures:
    """The figures of the run with those of its refusals."""
    extra = {"shed_recall": judged.recall, "shed_wait_ratio_p50": judged.wait_ratio_p50}
    known = {name: value for name, value in extra.items() if value is not None}
    return replace(figures, shed_precision=judged.precision, extra={**figures.extra, **known})
