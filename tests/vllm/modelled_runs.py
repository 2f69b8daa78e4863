"""The runs of ``corked_runs`` on the engine model ``proxy.sim.engine``, and how far apart the two are.

Nothing of the real engine's course enters but the order in which requests arrived.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from proxy.sim.engine import Engine
from proxy.sim.engine_requests import EngineRequest, EngineSettings, StepReport, chain_hashes
from tests.vllm.conftest import BLOCK_SIZE, CONTEXT_TOKENS, SEQUENCES_MAX
from tests.vllm.corked_runs import BATCH_TOKENS, KV_BLOCKS, USABLE_BLOCKS, RealRun, State, TraceRequest, cork

SETTINGS = EngineSettings(
    num_gpu_blocks=KV_BLOCKS,
    block_size=BLOCK_SIZE,
    max_num_batched_tokens=BATCH_TOKENS,
    max_num_seqs=SEQUENCES_MAX,
    max_model_len=CONTEXT_TOKENS,
)


@dataclass(frozen=True, slots=True)
class ModelRun:
    """One state per step; ``held`` are the blocks of each unfinished sequence after it, in order of arrival."""

    states: tuple[State, ...]
    held: tuple[tuple[int, ...], ...]

    @property
    def preemptions(self) -> int:
        """Of the whole run."""
        return self.states[-1].preemptions


def run_model(run: str, requests: Iterable[TraceRequest], clients: int, settings: EngineSettings = SETTINGS) -> ModelRun:
    """Run the cork and the requests, given in order of arrival, ``clients`` of them open at a time.

    A client's next request comes at the end of the step that ended its last one. To the real engine it takes a few steps more; as
    long as others wait before it, that shows in the number of those waiting and in nothing else.
    """
    engine = Engine(settings)
    left = iter(requests)
    open_sequences: dict[str, str] = {}  # and the request of each

    def add(request: TraceRequest) -> None:
        hashes = chain_hashes(request.prompt, settings.block_size)
        for copy in range(request.copies):
            sequence = f"{copy} of {request.name}"
            open_sequences[sequence] = request.name
            engine.add(EngineRequest(sequence, len(request.prompt), output_tokens_max=request.output_tokens, block_hashes=hashes))

    def add_next() -> None:
        if (request := next(left, None)) is not None:
            add(request)

    corking = cork(run)
    add(corking)
    for _ in range(clients):
        add_next()
    states: list[State] = []
    held: list[tuple[int, ...]] = []
    while engine.has_work:
        report = engine.step()
        states.append(shown(engine, report))
        ended = [open_sequences.pop(sequence) for sequence, _ in report.finished]
        held.append(tuple(engine.held_blocks(sequence) for sequence in open_sequences))
        for name in ended:
            if name != corking.name and name not in open_sequences.values():
                add_next()
    return ModelRun(tuple(states), tuple(held))


def shown(engine: Engine, report: StepReport) -> State:
    """What the real engine's ``/metrics`` would show of this step."""
    counters = engine.counters
    return State(counters.generation_tokens, report.used_blocks, report.running, report.waiting, counters.preemptions_exposed)


@dataclass(frozen=True, slots=True)
class Comparison:
    """``different`` are scrapes that show no state of the model; ``usage_error`` is the mean over scrapes of |real − model|, 0..1."""

    scrapes: int
    different: tuple[State, ...]
    usage_error: float
    preemptions: int
    preemptions_model: int

    @property
    def preemptions_error(self) -> float:
        """|real − model| ÷ real."""
        return abs(self.preemptions - self.preemptions_model) / max(1, self.preemptions)

    def __str__(self) -> str:
        return (
            f"{self.scrapes} scrapes, {len(self.different)} of them no state of the model (first: {self.different[:1]}), usage error"
            f" {self.usage_error:.5f}, preemptions {self.preemptions}, of the model {self.preemptions_model}"
        )


def compare(real: RealRun, model: ModelRun, *, waiting: bool) -> Comparison:
    """Compare each scrape with the model's steps at the same number of generated tokens, ``waiting`` requests included or not.

    Steps that only prefill generate nothing, so one number of tokens can stand for several steps: any of them may be the one scraped.
    """

    def seen(state: State) -> State:
        return state if waiting else replace(state, waiting=0)

    steps: dict[int, list[State]] = defaultdict(list)
    for state in model.states:
        steps[state.generated].append(seen(state))
    marks = sorted(steps)
    errors = []
    different = []
    for state in map(seen, real.states):
        # Where the model passed over that number, its last step before counts.
        candidates = steps[marks[max(0, bisect_right(marks, state.generated) - 1)]]
        errors.append(min(abs(state.used_blocks - candidate.used_blocks) for candidate in candidates) / USABLE_BLOCKS)
        if state not in candidates:
            different.append(state)
    return Comparison(len(errors), tuple(different), sum(errors) / len(errors), real.preemptions, model.preemptions)
