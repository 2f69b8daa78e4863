"""What goes wrong between engines and whoever watches them, and with engines themselves.

Decides nothing: it turns an engine's gauges and counters into the scrape that arrives. Faults are given beforehand by time or by count, so
a world with faults is as deterministic as one without. Whether an engine restarted is judged by what also judges in serving.

Fails: a restart takes no time of its own, only ``down_s``; requests that reach an engine while it is down wait for it.
"""

from dataclasses import dataclass, fields, replace

from proxy.core.epoch import EpochJudge, Verdict
from proxy.core.replica import EngineSample, ReplicaSample
from proxy.sim.engine_requests import EngineCounters, EngineGauges

NEVER = (float("inf"), float("inf"))
COUNTERS = tuple(one.name for one in fields(EngineSample) if one.name.endswith("_total"))


@dataclass(frozen=True, slots=True)
class Faults:
    """Times are seconds of the world, windows half open.

    ``missing`` names fields of ``EngineSample`` that are never told. ``age_hidden``: gauges are as old as the world's ``metrics_age_s``
    says and pretend to be new. Every ``jump_every``-th scrape reads ``jump_ratio`` as its usage. In ``frozen_s`` every scrape repeats
    the one before it. At ``counters_fall_s`` the counters begin at zero again though nothing restarted. At ``restarts_s`` every engine
    loses its requests and is away for ``down_s``; clients learn of it ``lost_s`` later.
    """

    missing: frozenset[str] = frozenset()
    age_hidden: bool = False
    jump_every: int = 0
    jump_ratio: float = 1.0
    frozen_s: tuple[float, float] = NEVER
    counters_fall_s: float = float("inf")
    restarts_s: tuple[float, ...] = ()
    down_s: float = 0.0
    lost_s: float = 0.0

    def __post_init__(self) -> None:
        told = {one.name for one in fields(EngineSample)} - {"engine"}
        if not self.missing <= told:
            raise ValueError(f"missing={sorted(self.missing - told)}: must be among {sorted(told)}")

    def down(self, now_s: float) -> bool:
        """Whether engines are away."""
        return any(at_s <= now_s < at_s + self.down_s for at_s in self.restarts_s)


def engine_sample(gauges: EngineGauges, counters: EngineCounters) -> EngineSample:
    """What an engine's ``/metrics`` shows."""
    return EngineSample(
        engine="0",
        kv_usage_ratio=gauges.usage_ratio,
        running=gauges.running,
        waiting=gauges.waiting,
        preemptions_total=counters.preemptions_exposed,
        prompt_tokens_total=counters.prompt_tokens,
        generation_tokens_total=counters.generation_tokens,
        prefix_queries_tokens_total=counters.prefix_queries,
        prefix_hits_tokens_total=counters.prefix_hits,
    )


class Feed:
    """The scrapes of one replica, in order. ``after_step``: they show what was ``stepped`` last, whatever is under way."""

    def __init__(self, name: str, faults: Faults, *, after_step: bool = False) -> None:
        self.name = name
        self._faults = faults
        self._judge = EpochJudge()
        self._scrapes = 0
        self._shown: EngineSample | None = None
        self._fallen: EngineSample | None = None  # what the counters stood at when they fell

        self._stepped = engine_sample(EngineGauges(), EngineCounters()) if after_step else None

    def stepped(self, gauges: EngineGauges, counters: EngineCounters) -> None:
        """The engine has done a step."""
        if self._stepped is not None:
            self._stepped = engine_sample(gauges, counters)

    def failed(self) -> None:
        """A scrape got no answer."""
        self._judge.interrupted()

    def sample(self, gauges: EngineGauges, counters: EngineCounters, now_s: float, *, age_s: float) -> ReplicaSample:
        """The scrape of an engine at ``now_s``, which will arrive ``age_s`` later."""
        faults = self._faults
        self._scrapes += 1
        frozen = faults.frozen_s[0] <= now_s < faults.frozen_s[1]
        if not frozen or self._shown is None:
            self._shown = self._falling(self._stepped or engine_sample(gauges, counters), now_s)
        shown = self._shown
        if faults.jump_every and self._scrapes % faults.jump_every == 0:
            shown = replace(shown, kv_usage_ratio=faults.jump_ratio)
        shown = replace(shown, **dict.fromkeys(faults.missing))  # type: ignore[arg-type]  # engine is not among them
        told = {name: value for name in COUNTERS if (value := getattr(shown, name)) is not None}
        verdict = self._judge.observe(fresh_connection=self._scrapes % 8 == 0, started_s=None, counters=told)
        return ReplicaSample(
            self.name, now_s + age_s if faults.age_hidden else now_s, (shown,), new_epoch=verdict is Verdict.NEW_EPOCH
        )  # fmt: skip

    def _falling(self, shown: EngineSample, now_s: float) -> EngineSample:
        if now_s < self._faults.counters_fall_s:
            return shown
        if self._fallen is None:
            self._fallen = shown
        fallen = self._fallen
        return replace(shown, **{name: getattr(shown, name) - getattr(fallen, name) for name in COUNTERS})
