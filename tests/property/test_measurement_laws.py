"""Whatever the engine is read to say, it never makes room: what the ledger alone says is full stays full."""

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.book import Book
from tests.support.builders import book, demand, engine_sample, lease_of, scrape

USABLE = 100
RATIOS = st.one_of(st.none(), st.just(0.0), st.just(1.0), st.floats(0.0, 1.0))
COUNTS = st.one_of(st.none(), st.integers(0, 20))
READINGS = st.lists(st.tuples(RATIOS, COUNTS, COUNTS, st.floats(0.01, 30.0), st.floats(0.0, 15.0)), max_size=25)
REQUESTS = st.lists(st.tuples(st.integers(1, 600), st.integers(1, 300), st.booleans()), min_size=1, max_size=8)


def with_leases(requests: list[tuple[int, int, bool]]) -> Book:
    """A replica that holds these, some of them seen to be placed."""
    here = book(usable=USABLE)
    for index, (prompt, cap, placed) in enumerate(requests):
        lease_of(demand(f"q{index}", prompt=prompt, cap=cap), here).placed = placed
    return here


@given(requests=REQUESTS, readings=READINGS, prompt=st.integers(1, 1500), cap=st.integers(1, 300))
@settings(max_examples=150, deadline=None)
def test_no_sequence_of_readings_admits_past_what_the_ledger_says_is_full(
    requests: list[tuple[int, int, bool]],
    readings: list[tuple[float | None, int | None, int | None, float, float]],
    prompt: int,
    cap: int,
) -> None:
    here = with_leases(requests)
    now_s = 0.0
    for usage, running, waiting, gap_s, age_s in readings:
        now_s += gap_s
        sample = engine_sample(usage=usage, running=running, waiting=waiting)
        here.observe(scrape("r0", max(0.0, now_s - age_s), sample), now_s)
        assert here.reconciler.bias_blocks >= 0.0
        asked = demand("new", prompt=prompt, cap=cap)
        curves = here.ledger.demand_curves(asked, here.output_tokens_max(asked))
        total = here.ledger.total + curves
        sigma = (total.variance.clip(0.0) + total.common**2) ** 0.5
        alone = float((total.mean + here.feedback.z * sigma).clip(max=total.ceiling).max())
        assert here.peak_blocks(curves, now_s) >= alone - 1e-6
        if alone > USABLE:
            assert not here.verdict(asked, now_s).fits
