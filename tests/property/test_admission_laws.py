"""More room never refuses what less room admits; more demand never fits where less does not."""

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.book import Book
from proxy.core.survival import SurvivalModel
from tests.support.builders import book, demand, lease_of

REQUESTS = st.lists(st.tuples(st.integers(1, 400), st.integers(1, 400), st.integers(1, 3)), min_size=1, max_size=12)


def admitted(here: Book, requests: list[tuple[int, int, int]]) -> list[bool]:
    """Which of these a fresh book would take beside the first one, each by itself."""
    prompt, cap, copies = requests[0]
    lease_of(demand("first", prompt=prompt, cap=cap, copies=copies), here)
    return [here.verdict(demand("x", prompt=p, cap=c, copies=n), 0.0).fits for p, c, n in requests[1:]]


@given(requests=REQUESTS, usable=st.integers(1, 200), more=st.integers(0, 200), z=st.floats(0.0, 4.0))
@settings(max_examples=100, deadline=None)
def test_more_blocks_never_refuse_what_fewer_admit(
    requests: list[tuple[int, int, int]], usable: int, more: int, z: float
) -> None:
    small = admitted(book(z=z, usable=usable), requests)
    large = admitted(book(z=z, usable=usable + more), requests)
    assert all(big or not little for little, big in zip(small, large, strict=True))


@given(requests=REQUESTS, usable=st.integers(20, 200), z=st.floats(0.0, 4.0), wider=st.floats(0.0, 2.0))
@settings(max_examples=100, deadline=None)
def test_a_wider_margin_never_admits_what_a_narrower_refuses(
    requests: list[tuple[int, int, int]], usable: int, z: float, wider: float
) -> None:
    bold, wary = admitted(book(z=z, usable=usable), requests), admitted(book(z=z + wider, usable=usable), requests)
    assert all(one or not other for one, other in zip(bold, wary, strict=True))


@given(requests=REQUESTS, usable=st.integers(20, 300))
@settings(max_examples=100, deadline=None)
def test_who_is_here_already_never_makes_room(requests: list[tuple[int, int, int]], usable: int) -> None:
    """The forecast with one more lease is nowhere lower: nobody shares a prefix here."""
    here = book(SurvivalModel(), usable=usable)
    for index, (prompt, cap, copies) in enumerate(requests):
        before = here.quantile(here.ledger.total, 0.0)
        lease_of(demand(f"q{index}", prompt=prompt, cap=cap, copies=copies), here)
        assert (here.quantile(here.ledger.total, 0.0) >= before - 1e-9).all()
