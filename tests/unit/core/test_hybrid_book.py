"""A replica of a hybrid model: what its forecast counts, what can never fit, and what it learns from scrapes."""

from collections.abc import Iterator

import numpy as np
import pytest

from proxy.core.book import Book
from proxy.core.demand import Demand
from proxy.core.feedback import Feedback
from proxy.core.fleet import Fleet
from proxy.core.kv_shape import Attention, KvGroups, KvLayout, KvShape, LayerKind, fitted_layout
from proxy.core.policy import Policy
from proxy.core.replica import EngineSample, ReplicaSpec
from proxy.core.survival import SurvivalModel
from tests.support.builders import demand, knows_lengths, lease_of, scrape

FULL = KvGroups(LayerKind(Attention.FULL))
GEMMA = KvLayout((FULL, KvGroups(LayerKind(Attention.WINDOW, 512), 5)), in_flight_tokens_max=2048)
USABLE = 4000


def hybrid(layout: KvLayout, *demands: Demand, usable: int = USABLE) -> Book:
    spec = ReplicaSpec("r0", ("m",), usable, 16, 8192, kv_layout=layout)
    return Book(
        spec, knows_lengths(SurvivalModel(), *demands), Feedback(target_ratio=0.005, z_min=2.0, z_max=2.0), stale_s=5.0, now_s=0.0
    )


def peak(book: Book, one: Demand) -> float:
    return float(book.ledger.demand_curves(one, book.output_tokens_max(one)).mean.max())


def test_a_forecast_counts_every_group() -> None:
    one = demand(prompt=1000, cap=100)
    # 1,099 tokens: 69 blocks in the full group. While its prompt is computed every window holds all 63 blocks of it.
    assert peak(hybrid(GEMMA, one), one) == 6 * 63
    # Once it decodes: 512 / 16 + 1 = 33 in each window, at 69 in the full group.
    book = hybrid(GEMMA, one)
    lease = lease_of(one, book)
    lease.placed, lease.output_tokens = True, 1
    book.refresh(1.0)
    assert book.ledger.total.mean.max() == pytest.approx(69 + 5 * 33, abs=0.01)


def test_a_request_that_is_not_placed_may_hold_all_that_its_prefill_has_in_flight() -> None:
    one = demand(prompt=1000, cap=100)
    book = hybrid(GEMMA, one)
    lease_of(one, book)
    assert book.ledger.held_interval(0.0, 0.0) == (0.0, 6 * 63)


def test_no_prefix_is_discounted_on_a_hybrid() -> None:
    one = demand("a", prompt=320, hashes=tuple(range(20)))
    for layout, discounts in ((KvLayout(), True), (GEMMA, False), (KvLayout(prefix_caching=False), False)):
        book = hybrid(layout, one)
        alone = peak(book, one)
        lease_of(one, book)
        assert (peak(book, demand("b", prompt=320, hashes=tuple(range(20)))) < alone) is discounts


def test_copies_share_nothing_where_nothing_is_cached() -> None:
    four = demand(prompt=100, cap=1, copies=4)
    assert peak(hybrid(KvLayout(), four), four) == 10
    assert peak(hybrid(KvLayout(prefix_caching=False), four), four) == 28


@pytest.mark.parametrize(("layout", "blocks"), [(KvLayout(), 63), (GEMMA, 63 + 5 * 31), (fitted_layout(), 63)])
def test_only_what_is_held_for_certain_can_never_fit(layout: KvLayout, blocks: int) -> None:
    one = demand(prompt=1000)
    assert hybrid(layout, usable=blocks).fits_alone(one)
    assert not hybrid(layout, usable=blocks - 1).fits_alone(one)


def test_replicas_of_fitted_models_learn_on_their_own() -> None:
    fleet = Fleet(Policy(), 0.0)
    for name, layout in (("a", KvLayout()), ("b", KvLayout()), ("c", fitted_layout()), ("d", fitted_layout())):
        fleet.found(ReplicaSpec(name, ("m",), 100, 16, 4096, kv_layout=layout), 0.0)
    newcomers = [fleet.books[name].ledger.newcomers for name in "abcd"]
    assert newcomers[0] is newcomers[1]
    assert len(set(map(id, newcomers))) == 3


class Engine:
    """Requests that decode on a hybrid, one token a step; what a scrape would show of them."""

    def __init__(self, truth: KvShape) -> None:
        self.truth = truth

    def sample(self, tokens: list[float], *, foreign: int = 0, waiting: int = 0, hits: float | None = 0.0) -> EngineSample:
        used = float(self.truth.blocks(np.asarray(tokens)).sum()) + foreign
        return EngineSample("0", used / USABLE, len(tokens), waiting, prefix_hits_tokens_total=hits)


def run(book: Book, engine: Engine, *, samples: int = 10, moving: bool = False, waiting: int = 0) -> Iterator[float]:
    """Three requests of 1,000, 2,000 and 3,000 tokens decode; after each scrape, blocks by our count over the true ones."""
    prompts = (1000, 2000, 3000)
    book.observe(scrape("r0", 0.5, engine.sample([])), 0.5)
    leases = [lease_of(demand(f"q{prompt}", prompt=prompt, cap=4000), book) for prompt in prompts]
    lengths = np.arange(100.0, 8000.0, 61.0)
    for index in range(samples):
        now_s = 1.0 + index
        for lease in leases:
            lease.output_tokens += 20
            if not lease.placed:
                lease.placed, lease.placed_s = True, now_s - 0.5
        tokens = [prompt - 1.0 + lease.output_tokens for prompt, lease in zip(prompts, leases, strict=True)]
        sample = engine.sample(tokens, waiting=waiting, hits=float(index + 1) if moving else 0.0)
        book.observe(scrape("r0", now_s, sample), now_s)
        ratio = book.ledger.shape.blocks(lengths) / engine.truth.blocks(lengths)
        assert ratio.min() >= 1.0
        yield float(ratio.mean())


def test_scrapes_bring_the_count_down_to_what_is_held() -> None:
    ratios = list(run(hybrid(fitted_layout(800.0)), Engine(KvShape(16, GEMMA))))
    assert ratios[0] > 2.0
    assert ratios[-1] < 1.3


def test_requests_that_may_share_a_prefix_teach_nothing() -> None:
    ratios = list(run(hybrid(fitted_layout(800.0)), Engine(KvShape(16, GEMMA)), samples=2, moving=True))
    assert ratios[0] == ratios[-1]


def test_an_engine_that_preempts_teaches_nothing() -> None:
    ratios = list(run(hybrid(fitted_layout(800.0)), Engine(KvShape(16, GEMMA)), waiting=1))
    assert ratios[0] == ratios[-1]


def test_a_known_model_learns_nothing() -> None:
    book = hybrid(GEMMA)
    assert book.kv_fit is None
    assert set(run(book, Engine(KvShape(16, GEMMA)), samples=3)) == {1.0}
