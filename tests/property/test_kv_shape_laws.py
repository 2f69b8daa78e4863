"""Blocks grow with tokens, a simple allocator never holds more, and a fit comes down to the truth without ever falling below it."""

from math import ceil

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.kv_fit import KvFit
from proxy.core.kv_shape import Attention, KvGroups, KvLayout, KvShape, LayerKind, fitted_layout

KINDS = st.one_of(
    st.just(LayerKind(Attention.FULL)),
    st.just(LayerKind(Attention.STATE)),
    st.builds(LayerKind, st.just(Attention.WINDOW), st.integers(2, 600)),
    st.builds(LayerKind, st.just(Attention.CHUNK), st.integers(2, 600)),
)
BLOCK_SIZES = st.sampled_from([1, 8, 16, 32])


def shapes() -> st.SearchStrategy[KvShape]:
    groups = st.lists(st.builds(KvGroups, KINDS, st.integers(1, 6)), min_size=1, max_size=3)
    layouts = st.builds(KvLayout, groups.map(tuple), st.booleans(), st.integers(2, 3000))
    return st.builds(KvShape, BLOCK_SIZES, layouts)


class Allocator:
    """One sequence's block tables: a set of block numbers in each group, dropped as the engine drops them, one step late."""

    def __init__(self, shape: KvShape) -> None:
        self.size = shape.block_size
        self.kinds = [groups.kind for groups in shape.layout.groups for _ in range(groups.count)]
        self.states = 2 if shape.layout.prefix_caching else 1
        self.tables: list[set[int]] = [set() for _ in self.kinds]

    def step(self, settled: int, target: int) -> int:
        """Take what ``target`` token slots need, ``settled`` of them behind us; return the blocks held."""
        for kind, table in zip(self.kinds, self.tables, strict=True):
            table.update(range(settled // self.size, ceil(target / self.size)))
            match kind.attention:
                case Attention.FULL:
                    dropped = 0
                case Attention.WINDOW:
                    dropped = max(0, settled - kind.span_tokens + 1) // self.size
                case Attention.CHUNK:
                    dropped = settled // kind.span_tokens * kind.span_tokens // self.size
                case Attention.STATE:
                    dropped = ceil(target / self.size) - self.states
            table -= {block for block in table if block < dropped}
        return sum(map(len, self.tables))


@given(shape=shapes(), tokens=st.lists(st.integers(0, 5000), min_size=2, max_size=20))
def test_more_tokens_never_hold_less(shape: KvShape, tokens: list[int]) -> None:
    ordered = np.sort(np.asarray(tokens, dtype=np.float64))
    for blocks in (shape.blocks(ordered), shape.prefill(ordered)):
        assert (np.diff(blocks) >= 0.0).all()
    assert (shape.prefill(ordered) >= shape.blocks(ordered)).all()


@given(shape=shapes(), prompt=st.integers(1, 1500), output=st.integers(1, 60), lag=st.integers(0, 1))
@settings(max_examples=40, deadline=None)
def test_an_allocator_never_holds_more(shape: KvShape, prompt: int, output: int, lag: int) -> None:
    """``lag`` 1 is asynchronous scheduling: a step is settled one step late."""
    allocator, chunk = Allocator(shape), max(1, shape.layout.in_flight_tokens_max // (1 + lag))
    computed = settled = 0
    bound = float(shape.prefill(np.array([float(prompt)]))[0])
    while computed < prompt:
        target = min(prompt, computed + chunk)
        assert allocator.step(settled, target) <= bound
        settled, computed = (computed if lag else target), target
    allocator.step(computed, prompt)
    for tokens in range(prompt + 1, prompt + output):
        held = allocator.step(tokens - 1 - lag, tokens)
        if tokens > prompt + 1:
            assert held <= shape.blocks(np.array([float(tokens)]))[0], tokens


@given(prompt=st.integers(1, 3000), out=st.integers(1, 500), copies=st.integers(1, 5), shape=shapes())
def test_copies_hold_at_least_one_and_at_most_all(prompt: int, out: int, copies: int, shape: KvShape) -> None:
    prompts, tokens, many = np.array([[float(prompt)], [float(prompt - 1 + out)], [float(copies)]])
    held = shape.held(prompts, tokens, many, np.ones(1))
    one = shape.blocks(tokens)
    assert one[0] <= held[0] <= copies * one[0]


@st.composite
def hybrids(draw: st.DrawFn) -> tuple[KvShape, float]:
    """A model of one full group and up to nine of one other kind, and its excess for a request of 8,192 tokens."""
    more, size = draw(st.integers(1, 9)), draw(st.sampled_from([16, 32]))
    kind = draw(
        st.sampled_from([LayerKind(Attention.STATE), LayerKind(Attention.WINDOW, 512), LayerKind(Attention.WINDOW, 1024)])
    )
    truth = KvShape(size, KvLayout((KvGroups(LayerKind(Attention.FULL)), KvGroups(kind, more))))
    longest = np.array([8192.0])
    return truth, float((truth.prefill(longest) - np.ceil(longest / size))[0])


@given(
    model=hybrids(),
    loads=st.lists(st.lists(st.integers(1, 6000), min_size=1, max_size=12), min_size=1, max_size=15),
    told=st.booleans(),
    foreign=st.integers(0, 200),
)
@settings(max_examples=50, deadline=None)
def test_a_fit_never_falls_below_the_truth(
    model: tuple[KvShape, float], loads: list[list[int]], told: bool, foreign: int
) -> None:
    """Whatever runs, and whatever else takes blocks that we do not know of."""
    truth, excess = model
    fit = KvFit(KvShape(truth.block_size, fitted_layout(excess if told else np.inf)))
    lengths = np.arange(1.0, 8192.0, 61.0)
    for load in loads:
        tokens = np.asarray(load, dtype=np.float64)
        fit.observe(tokens, float(truth.blocks(tokens).sum()) + foreign)
        assert (fit.shape.blocks(lengths) >= truth.blocks(lengths)).all()


@given(model=hybrids(), seed=st.integers(0, 1000))
@settings(max_examples=8, deadline=None)
def test_a_fit_comes_down_to_the_truth(model: tuple[KvShape, float], seed: int) -> None:
    """Five minutes of scrapes with one to four requests of all lengths: on average within 15 %, and nowhere below."""
    truth, excess = model
    random = np.random.default_rng(seed)
    fit = KvFit(KvShape(truth.block_size, fitted_layout(excess)))
    for _ in range(300):
        tokens = random.uniform(50.0, 7000.0, size=random.integers(1, 5))
        for _ in range(2):
            fit.observe(tokens, float(truth.blocks(tokens).sum()))
    lengths = np.arange(300.0, 7000.0, 61.0)
    ratio = fit.shape.blocks(lengths) / truth.blocks(lengths)
    assert ratio.min() >= 1.0
    assert ratio.mean() <= 1.15
