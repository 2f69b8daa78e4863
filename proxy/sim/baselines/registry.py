"""Baselines by name, parameters in the name: ``static:32``, ``threshold-own:0.9``, ``past-future:code``."""

from collections.abc import Callable
from dataclasses import dataclass

from proxy.core.policy import Policy
from proxy.sim.admission import Admission, PlainForwarding
from proxy.sim.baselines.past_future import PUBLISHED, PastFuture
from proxy.sim.baselines.queueing import Queueing
from proxy.sim.baselines.routing import (
    FewestOutstanding,
    LeastWaiting,
    PowerOfTwoChoices,
    RoundRobin,
    Routing,
    ScoredByMetrics,
)
from proxy.sim.baselines.rule import Everything, Rule
from proxy.sim.baselines.rules import KvThreshold, LearnedThreshold, OwnThreshold, ReserveMax, StaticCap, UtilizationDetector
from proxy.sim.baselines.sglang_ratio import NewTokenRatio


@dataclass(frozen=True, slots=True)
class Baseline:
    """``make`` takes the parameter after the colon; ``parameter`` is the one it has without a colon, None where it has to be given."""

    text: str
    make: Callable[[str], Rule]
    parameter: str | None = ""
    routing: Callable[[], Routing] = FewestOutstanding


def _bare(rule: type[Rule]) -> Callable[[str], Rule]:
    def make(parameter: str) -> Rule:
        if parameter:
            raise ValueError("takes no parameter")
        return rule()

    return make


def _past_future(parameter: str) -> Rule:
    if parameter not in PUBLISHED:
        raise ValueError(f"no such parameter set; there are {', '.join(PUBLISHED)}")
    return PastFuture(PUBLISHED[parameter])


BASELINES = {
    "static": Baseline("at most N requests per replica", lambda text: StaticCap(int(text)), None),
    "threshold": Baseline("while the last scraped KV usage is below X", lambda text: KvThreshold(float(text)), "0.9"),
    "threshold-own": Baseline(
        "the same plus own prompts not placed when it was scraped", lambda text: OwnThreshold(float(text)), "0.9"
    ),
    "threshold-learned": Baseline(
        "threshold-own whose level, at first X, follows the engine's preemptions",
        lambda text: LearnedThreshold(float(text)),
        "0.9",
    ),
    "llm-d": Baseline(
        "llm-d's utilization detector; a scrape is stale after S seconds",
        lambda text: UtilizationDetector(float(text)),
        "0.2",
        ScoredByMetrics,
    ),
    "reserve-max": Baseline("reserve prompt + max_tokens", _bare(ReserveMax)),
    "past-future": Baseline(f"LightLLM's Past-Future, parameters of {', '.join(PUBLISHED)}", _past_future, "code"),
    "sglang": Baseline("SGLang's new-token ratio, conservativeness X", lambda text: NewTokenRatio(float(text)), "1.0"),
    "round-robin": Baseline("admit all, each replica in turn", _bare(Everything), routing=RoundRobin),
    "p2c": Baseline("admit all, the less loaded of two at random", _bare(Everything), routing=PowerOfTwoChoices),
    "least-waiting": Baseline("admit all, the shortest engine queue at the last scrape", _bare(Everything), routing=LeastWaiting),
}
PASS_THROUGH = "passthrough"  # noqa: S105  (not a password)


def make_baseline(name: str, policy: Policy, *, seed: int = 0) -> Admission:
    """Make a fresh one for one world. Of the policy it takes the bounds of the queue.

    Raises ValueError for a name that is none, and for a parameter that is missing or out of range.
    """
    if name == PASS_THROUGH:
        return PlainForwarding()
    kind, colon, parameter = name.partition(":")
    found = BASELINES.get(kind)
    if found is None:
        raise ValueError(f"{name}: no such baseline; there are {', '.join((PASS_THROUGH, *BASELINES))}")
    if not colon:
        if found.parameter is None:
            raise ValueError(f"{name}: needs a parameter, as in {kind}:32")
        parameter = found.parameter
    try:
        rule = found.make(parameter)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return Queueing(rule, found.routing(), policy.queue, seed=seed)
