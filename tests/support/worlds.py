"""Workloads and judges for simulated worlds. A world says how to play it again when a judge finds fault with it."""

import random
from collections.abc import Iterable

from proxy.core.gate import Gate
from proxy.core.outcome import Outcome
from proxy.core.policy import Policy
from proxy.sim.admission import GateAdmission, PlainForwarding
from proxy.sim.engine_requests import EngineSettings
from proxy.sim.figures import Figures, Targets, figures_of
from proxy.sim.sim_request import SimRequest
from proxy.sim.step_time import StepTimeModel
from proxy.sim.world import Listed, World, WorldSettings

# Steps of one length, whatever is in them: then two runs can be compared step by step.
EVEN_STEPS = StepTimeModel(base_s=0.01, prefill_token_s=0.0, decode_sequence_s=0.0, kv_token_s=0.0)


def pool(blocks: int = 256, block_size: int = 32, context: int = 4096) -> EngineSettings:
    """An engine with ``blocks`` usable blocks."""
    return EngineSettings(num_gpu_blocks=blocks + 1, block_size=block_size, max_model_len=context)


def honest(
    name: str, prompt: int, length: int, arrival_s: float = 0.0, *, tenant: str = "default", streaming: bool = True
) -> SimRequest:
    """A request that ends at its cap and not by itself, as with ``ignore_eos``: its length is known."""
    return SimRequest(name, prompt, length + 1, length, arrival_s, tenant, streaming=streaming)


def wave(count: int, prompt: int, length: int) -> list[SimRequest]:
    """Equal requests with honest caps."""
    return [honest(f"q{index}", prompt, length) for index in range(count)]


def lognormal(rng: random.Random, count: int, *, cap: int | None = None, length_max: int = 1500) -> list[SimRequest]:
    """Chat-like: median prompt and output 150 tokens, a long tail. ``cap`` None: each is capped at its own length."""

    def draw() -> int:
        return min(length_max, max(1, int(rng.lognormvariate(5.0, 0.8))))

    lengths = [(f"q{index}", draw(), draw()) for index in range(count)]
    return [honest(*one) if cap is None else SimRequest(*one, cap) for one in lengths]


def mixed(rng: random.Random, count: int) -> list[SimRequest]:
    """Prompts from 32 to 3,000 tokens, outputs up to 300, honest caps."""
    return [honest(f"q{i}", rng.randint(32, 3000), rng.randint(1, 300)) for i in range(count)]


def play(settings: WorldSettings, workload: Iterable[SimRequest], *, gated: bool = True) -> World:
    """Run a workload to its end, under the default policy or past any gate."""
    return World(settings, GateAdmission(Policy()) if gated else PlainForwarding(), Listed(workload)).run()


def gate_of(world: World) -> Gate:
    """The gate of a world that has one."""
    assert isinstance(world.admission, GateAdmission)
    return world.admission.gate


def figures(world: World) -> Figures:
    """What ``kvgate simulate`` would print of it."""
    return figures_of(world, Targets())


def preemptions(world: World) -> int:
    """As the engines themselves count them, not as the gate sees them."""
    return sum(engine.counters.preemptions for engine in world.engines.values())


def judge(world: World, replay: str, *, shed: bool = False) -> None:
    """What holds in every world: all requests ended once, engines are empty, nothing is left at the gate."""
    outcomes = [result.outcome for result in world.results.values()]
    assert None not in outcomes, replay
    if not shed:
        assert set(outcomes) == {Outcome.COMPLETED}, replay
    for engine in world.engines.values():
        assert engine.unfinished == 0, replay
        assert engine.used_blocks == 0, replay
    ended = sum(sum(engine.counters.finished.values()) for engine in world.engines.values())
    assert ended == outcomes.count(Outcome.COMPLETED), replay
    tokens = sum(result.output_tokens for result in world.results.values())
    assert tokens == sum(engine.counters.generation_tokens for engine in world.engines.values()), replay
    for result in world.results.values():
        if result.outcome is Outcome.COMPLETED:
            cap = result.request.output_tokens_max
            assert result.output_tokens == min(result.request.output_tokens, cap or result.request.output_tokens), replay
    if isinstance(world.admission, GateAdmission):
        gate = gate_of(world)
        assert "held=0 open=0" in repr(gate), replay
        assert gate.leases.started == gate.leases.ended == gate.counters.admitted, replay
        assert all(not book.ledger.leases for book in gate.fleet), replay
