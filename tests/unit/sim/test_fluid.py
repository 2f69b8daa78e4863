"""The fluid bound: by hand where numbers are round, tight and never exceeded where the simulator can come near."""

from dataclasses import dataclass

import pytest

from proxy.sim.admission import PlainForwarding
from proxy.sim.engine_requests import EngineSettings
from proxy.sim.fluid import capacity_requests_per_s, fluid_bound
from proxy.sim.sim_request import SimRequest
from proxy.sim.step_time import StepTimeModel
from proxy.sim.world import Listed, World, WorldSettings

STEP = StepTimeModel()


@dataclass(frozen=True)
class Equal:
    """Lengths of requests that are all alike."""

    prompt: int
    output: int

    @property
    def prompt_tokens_fresh_mean(self) -> float:
        return float(self.prompt)

    @property
    def output_tokens_mean(self) -> float:
        return float(self.output)

    @property
    def token_steps_mean(self) -> float:
        return self.prompt * self.output + self.output * (self.output + 1) / 2


def engine(tokens: int, **kwargs: int) -> EngineSettings:
    return EngineSettings(num_gpu_blocks=tokens // 16 + 1, block_size=16, **kwargs)


def test_cache_bound_by_hand() -> None:
    # Each holds 100, 101, 102, 103: 406 token-steps over 4 steps, so 16,240 tokens carry 160 at a time.
    found = fluid_bound(engine(16240, max_num_batched_tokens=100_000), StepTimeModel(0.01, 0.0, 0.0, 0.0), Equal(100, 4))
    assert found.sequences == pytest.approx(160.0)
    assert found.tokens_per_s == pytest.approx(16000.0)
    assert found.requests_per_s == pytest.approx(4000.0)


@pytest.mark.parametrize(
    ("settings", "lengths", "sequences"),
    [
        (engine(1_600_000, max_num_seqs=64), Equal(100, 100), 64.0),
        (engine(1_600_000, max_num_seqs=512, max_num_batched_tokens=2048), Equal(1901, 100), 2048 * 100 / 2000),
    ],
)
def test_seats_and_token_budget_bind(settings: EngineSettings, lengths: Equal, sequences: float) -> None:
    assert fluid_bound(settings, STEP, lengths).sequences == pytest.approx(sequences)


def test_replicas_add_up_and_speed_multiplies() -> None:
    settings, lengths = engine(16000), Equal(200, 200)
    one = capacity_requests_per_s(settings, STEP, lengths)
    assert capacity_requests_per_s(settings, STEP, lengths, 3) == pytest.approx(3 * one)
    assert capacity_requests_per_s(settings, StepTimeModel(speed=2.0), lengths) == pytest.approx(2 * one)


def test_no_output_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        fluid_bound(engine(16000), STEP, Equal(10, 0))


@pytest.mark.parametrize("seats", [8, 48])
def test_a_saturated_engine_comes_near_and_never_over(seats: int) -> None:
    """Equal requests at seats that never preempt: within 6 % below the bound while saturated, never above."""
    lengths = Equal(150, 170)
    settings = engine(1_600_000, max_num_seqs=seats)
    requests = [SimRequest(f"q{i}", lengths.prompt, lengths.output + 1, lengths.output) for i in range(seats * 20)]
    world = World(WorldSettings(engine=settings, concurrency=seats), PlainForwarding(), Listed(requests)).run()
    assert world.dry_s is not None
    bound = fluid_bound(settings, STEP, lengths).tokens_per_s
    assert 0.94 * bound < world.dry_tokens / world.dry_s <= bound
