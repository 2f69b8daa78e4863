"""Replicas whose KV never binds, with requests on them: for tests of every other limit."""

from collections.abc import Iterator
from itertools import count

from proxy.core.book import Book
from proxy.core.ledger import Lease
from proxy.core.replica import EngineSample
from proxy.core.saturation import Binding, Saturation
from proxy.core.step_time import StepWindow
from tests.support.builders import book, demand, lease_of

NAMES: Iterator[int] = count()


def roomy(sequences_max: int | None = None) -> Book:
    """A replica whose KV never binds."""
    if sequences_max is None:
        return book(usable=100_000, context=200_000)
    return book(usable=100_000, context=200_000, sequences_max=sequences_max)


def running(here: Book, sequences: int, *, prompt: int = 10, sent_s: float = 0.0, **asked: float | int) -> list[Lease]:
    """Leases that stream, one sequence each."""
    leases = [lease_of(demand(f"q{next(NAMES)}", prompt=prompt, **asked), here, now_s=sent_s) for _ in range(sequences)]  # type: ignore[arg-type]
    for lease in leases:
        lease.placed, lease.placed_s = True, sent_s
    return leases


def sent(here: Book, sequences: int, at_s: float, *, prompt: int = 10) -> list[Lease]:
    """Leases of which nothing was seen yet."""
    return [lease_of(demand(f"q{next(NAMES)}", prompt=prompt), here, now_s=at_s) for _ in range(sequences)]


def binds(here: Book, now_s: float = 0.0, **asked: float | int) -> Binding:
    """What keeps a request out, KV aside; a glance never says that nothing does where something does."""
    one = demand("new", **asked)  # type: ignore[arg-type]
    binding = here.saturation.binding(one, now_s)
    no_targets = one.ttft_s is None and one.tpot_s is None
    assert binding is Binding.NONE or not (no_targets and here.saturation.at_ease(one, 0.0, now_s))
    return binding


def observe(here: Book, at_s: float, sample: EngineSample) -> None:
    """A scrape of this instant."""
    here.saturation.observe(sample, at_s, at_s)


def teach(saturation: Saturation, *, prefill_token_s: float = 1e-4, decode_s: float = 1e-3, base_s: float = 0.01) -> None:
    """A machine of 10 ms + 1 ms per sequence + 0.1 ms per prefill token, known up to 100 sequences."""
    for index in range(60):
        prefill, sequences = 200.0 * (index % 7), 1.0 + 99.0 * (index % 5) / 4.0
        step_s = base_s + prefill_token_s * prefill + decode_s * sequences
        saturation.step_time.observe(StepWindow(30 * step_s, 30.0, 30 * prefill, 30 * sequences, 0.0, prefill))
