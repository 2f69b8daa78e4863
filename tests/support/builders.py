"""Short ways to say what a test of the decision core is about: a demand, a replica, a book, a scrape, a model that knows lengths."""

from collections.abc import Sequence

import numpy as np

from proxy.core.book import Book
from proxy.core.choice import Choice
from proxy.core.curves import Curves, RowStates, look_ahead, main_curves, relative_errors
from proxy.core.demand import Demand, LengthClass, PromptPart
from proxy.core.feedback import Feedback
from proxy.core.gate import Gate
from proxy.core.grid import FloatArray, Grid
from proxy.core.kv_shape import KvShape
from proxy.core.ledger import Lease
from proxy.core.length_names import class_chain
from proxy.core.outcome import Mode
from proxy.core.placement import Placement
from proxy.core.policy import Policy, Queue, Relay
from proxy.core.replica import EngineSample, ReplicaSample, ReplicaSpec
from proxy.core.survival import SurvivalModel
from proxy.core.wait_queue import WaitQueue

FOREVER_S = 1e9
FAR_TOKENS = 1 << 20


class FakeClock:
    """Time that moves when told. Fits ``proxy.ports.Clock``."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        """Monotonic seconds."""
        return self._now_s

    def wall_s(self) -> float:
        """Seconds since some epoch: the same."""
        return self._now_s

    def advance(self, seconds: float) -> float:
        """Move on; return the new time."""
        assert seconds >= 0.0, seconds
        self._now_s += seconds
        return self._now_s


def demand(
    request_id: str = "q",
    *,
    prompt: int = 100,
    cap: int | None = 100,
    copies: int = 1,
    parts: Sequence[PromptPart] | None = None,
    hashes: tuple[int, ...] = (),
    arrived_s: float = 0.0,
    deadline_s: float = FOREVER_S,
    tenant: str = "default",
    weight: float = 1.0,
    priority: int = 0,
    body_bytes: int = 0,
    model: str = "m",
    shares_prefix: bool = True,
    fingerprint: int = 0,
    ttft_s: float | None = None,
    tpot_s: float | None = None,
    session: str = "",
    adapter: str = "",
) -> Demand:
    """One request; ``parts`` overrides ``prompt`` and ``hashes``."""
    return Demand(
        request_id=request_id,
        parts=tuple(parts) if parts is not None else (PromptPart(prompt, hashes),),
        length_class=LengthClass(model),
        arrived_s=arrived_s,
        deadline_s=deadline_s,
        copies=copies,
        output_tokens_max=cap,
        tenant=tenant,
        tenant_weight=weight,
        priority=priority,
        body_bytes=body_bytes,
        shares_prefix=shares_prefix,
        fingerprint=fingerprint,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        session=session,
        adapter=adapter,
    )


def spec(
    name: str = "r0",
    *,
    usable: int = 100,
    block_size: int = 16,
    context: int = 4096,
    sequences_max: int | None = None,
    models: tuple[str, ...] = ("m",),
    enforced: bool = True,
    server: str = "",
) -> ReplicaSpec:
    """One replica."""
    return ReplicaSpec(name, models, usable, block_size, context, sequences_max, enforced, server=server)


def policy(
    *,
    mode: Mode = Mode.ENFORCE,
    requests_max: int = 512,
    tokens_max: int = 4_000_000,
    bytes_max: int = 1 << 28,
    reroutes_max: int = 2,
) -> Policy:
    """The default policy with the bounds a test is about."""
    queue = Queue(requests_max=requests_max, tokens_max=tokens_max, bytes_max=bytes_max)
    return Policy(mode=mode, queue=queue, relay=Relay(reroutes_max=reroutes_max))


def knows_lengths(model: SurvivalModel, *demands: Demand, outputs: int = 200) -> SurvivalModel:
    """Teach the model that these classes never end by themselves, so that their caps are their lengths; return it."""
    for one in {class_chain(one)[-1]: one for one in demands}.values():
        for _ in range(outputs):
            model.learn(one, FAR_TOKENS, natural=False)
    model.rebuild(())
    return model


def book(model: SurvivalModel | None = None, *, z: float = 2.0, now_s: float = 0.0, **replica: int) -> Book:
    """A replica's book with a margin that stays at ``z``; keywords as for ``spec``."""
    feedback = Feedback(target_ratio=0.005, z_min=z, z_max=z)
    return Book(spec(**replica), SurvivalModel() if model is None else model, feedback, stale_s=5.0, now_s=now_s)  # type: ignore[arg-type]


def lease_of(one: Demand, to: Book, *, streaming: bool = True, now_s: float = 0.0) -> Lease:
    """Book a lease for ``one``, as the gate does; return it."""
    lease = Lease(one.request_id, one, to.spec.name, to.output_tokens_max(one), now_s, to.clock.steps, streaming)
    to.add(lease)
    return lease


def engine_sample(
    *,
    usage: float | None = 0.0,
    running: int | None = 0,
    waiting: int | None = 0,
    waiting_capacity: int | None = None,
    preemptions: float | None = 0.0,
    generated: float | None = None,
    prefix_hits: float | None = None,
) -> EngineSample:
    """One engine's gauges and counters."""
    return EngineSample(
        "0", usage, running, waiting, waiting_capacity, preemptions, generation_tokens_total=generated,
        prefix_hits_tokens_total=prefix_hits,
    )  # fmt: skip


def scrape(replica: str, at_s: float, *engines: EngineSample, new_epoch: bool = False) -> ReplicaSample:
    """One scrape of a replica."""
    return ReplicaSample(replica, at_s, engines, new_epoch=new_epoch)


def rows(*states: tuple[float, float, float], copies: float = 1.0, delay: float = 0.0) -> RowStates:
    """Row states from (prompt, tokens out, cap) triples, all of the root class."""
    prompt, out, cap = np.asarray(states, dtype=np.float64).T
    same = np.ones(len(states))
    return RowStates(prompt, out, cap, same * copies, same * delay, same, np.zeros(len(states), dtype=np.intp))


def curves_of(states: RowStates, grid: Grid, model: SurvivalModel, shape: KvShape) -> tuple[Curves, FloatArray]:
    """Demand of each row as (N, G) curves, and the (N, G) alive probabilities they were made with: what a refresh draws."""
    ahead = look_ahead(states, grid, model, shape, doubts=True)
    mean, variance, ceiling, living = main_curves(states, ahead)
    return Curves(mean, variance, ceiling, relative_errors(ahead) * mean), living


def no_demand(intervals: int) -> Curves:
    """Curves of nobody."""
    return Curves(*np.zeros((4, intervals)))


def next_choice(placement: Placement, pool: list[Book], now_s: float) -> Choice | None:
    """The next admission to make, or None when nobody can go now."""
    return next(placement.choices(pool, now_s), None)


def promised(queue: WaitQueue) -> float:
    """Forecast token-time of those with a promise, over all bands."""
    return sum(band.charge for band in queue.bands.values())


def tenants_remembered(gate: Gate) -> int:
    """Tenants the queue keeps an account of."""
    return sum(len(band.tenants) for band in gate.queue.bands.values())
