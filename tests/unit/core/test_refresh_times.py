"""When forecasts are due, kept by book: always what asking every book would tell."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.core.refresh_times import RefreshTimes


class Books:
    """Books as far as they are asked, and how often they are."""

    def __init__(self, count: int) -> None:
        self.asked = 0
        self.due_s = [float("inf")] * count
        self.all: list[Any] = [self._book(place) for place in range(count)]

    def _book(self, place: int) -> Any:
        def refresh_due_s() -> float:
            self.asked += 1
            return self.due_s[place]

        spec, clock = SimpleNamespace(name=f"r{place}"), SimpleNamespace(rate_per_s=float(place))
        return SimpleNamespace(spec=spec, clock=clock, refresh_due_s=refresh_due_s)


def test_nothing_is_due_where_no_replica_is() -> None:
    times = RefreshTimes()
    times.changed("r0")
    assert times.first() == (float("inf"), 0.0)
    assert times.due(1e9) == []


@pytest.mark.parametrize("seed", range(5))
def test_it_tells_what_asking_every_book_would_tell(seed: int) -> None:
    rng, books = Random(seed), Books(20)
    times = RefreshTimes(books.all)
    for _ in range(200):
        for place in rng.sample(range(20), 3):
            books.due_s[place] = rng.choice([rng.randrange(10), float("inf")])  # equal ones too
            books.all[place].clock.rate_per_s = rng.random()
            times.changed(f"r{place}")
        now_s = rng.uniform(-1.0, 10.0)
        assert times.first() == (min(books.due_s), max(book.clock.rate_per_s for book in books.all))
        longest_first = sorted((due_s, place) for place, due_s in enumerate(books.due_s) if due_s <= now_s)
        assert [book.spec.name for book in times.due(now_s)] == [f"r{place}" for _, place in longest_first]


def test_of_a_thousand_only_those_that_changed_are_asked() -> None:
    books = Books(1000)
    times = RefreshTimes(books.all)
    times.first()
    books.asked = 0
    for place in range(50):
        books.due_s[place] = float(place)
        times.changed(f"r{place}")
        assert times.first()[0] == 0.0
    assert books.asked == 50
    assert times.due(-1.0) == []
