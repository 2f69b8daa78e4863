"""From scrape to scrape: steps by the fastest stream or the counter, what they carried, and when there is no window at all."""

import pytest

from proxy.core.book import Book
from proxy.core.replica import EngineSample
from proxy.core.step_time import StepWindow
from proxy.core.step_watch import StepWatch
from tests.support.saturated import roomy, running

BUDGET = 2048.0


def sample(
    *, usage: float | None = 0.1, running: int | None = 4, waiting: int = 0, capacity: int | None = None,
    prompts: float | None = 0.0, generated: float | None = 0.0, hits: float | None = None,
) -> EngineSample:  # fmt: skip
    return EngineSample("0", usage, running, waiting, capacity, None, prompts, generated, None, hits)


def watch(here: Book, first: EngineSample, second: EngineSample, *, advance: int = 0, backlog: float = 0.0) -> StepWindow | None:
    """Two scrapes a second apart, between which every stream of ``here`` advances by its index times ``advance``."""
    steps = StepWatch(here.ledger, here.spec.usable_blocks)
    assert steps.window(first, 1.0, backlog_tokens=backlog, prefill_outlook=3.0, token_budget=BUDGET) is None
    for index, lease in enumerate(here.ledger.leases.values()):
        lease.output_tokens += index * advance
    return steps.window(second, 2.0, backlog_tokens=backlog, prefill_outlook=3.0, token_budget=BUDGET)


def test_steps_are_what_the_fastest_stream_advanced() -> None:
    here = roomy()
    running(here, 4)
    window = watch(here, sample(), sample(usage=0.3, prompts=500.0, generated=70.0, hits=0.0), advance=10)
    assert window == StepWindow(1.0, 30.0, 500.0, 70.0, pytest.approx(0.2 * 100_000 * 16), 3.0, prefill_waiting=False)


def test_without_streams_the_counter_tells_the_steps() -> None:
    window = watch(roomy(), sample(running=4), sample(running=6, generated=100.0))
    assert window is not None
    assert (window.steps, window.output_tokens) == (20.0, 100.0)


def test_without_counters_our_streams_tell_what_was_done() -> None:
    here = roomy()
    running(here, 4)
    window = watch(here, sample(prompts=None, generated=None), sample(prompts=None, generated=None), advance=10)
    assert window is not None
    assert (window.steps, window.output_tokens, window.prefill_tokens) == (30.0, 60.0, 0.0)


def test_prompts_of_streams_that_are_new_count_where_no_counter_does() -> None:
    here = roomy()
    running(here, 2)
    steps = StepWatch(here.ledger, here.spec.usable_blocks)
    blind = sample(prompts=None, generated=None)
    steps.window(blind, 1.0, backlog_tokens=0.0, prefill_outlook=0.0, token_budget=BUDGET)
    for lease in here.ledger.leases.values():
        lease.output_tokens += 5
    running(here, 1, prompt=700)
    window = steps.window(blind, 2.0, backlog_tokens=0.0, prefill_outlook=0.0, token_budget=BUDGET)
    assert window is not None
    assert window.prefill_tokens == 700.0


def test_cached_prompt_tokens_are_no_prefill() -> None:
    here = roomy()
    running(here, 2)
    window = watch(here, sample(hits=100.0), sample(prompts=500.0, hits=400.0), advance=10)
    assert window is not None
    assert window.prefill_tokens == 200.0


@pytest.mark.parametrize("ends", [(0, 4), (4, 0), (None, 4), (4, None)])
def test_an_idle_or_silent_end_makes_no_window(ends: tuple[int | None, int | None]) -> None:
    here = roomy()
    running(here, 4)
    assert watch(here, sample(running=ends[0]), sample(running=ends[1], generated=10.0), advance=10) is None


def test_a_step_under_way_is_time_without_steps() -> None:
    here = roomy()
    running(here, 4)
    window = watch(here, sample(), sample())
    assert window is not None
    assert (window.seconds, window.steps) == (1.0, 0.0)


def test_a_new_epoch_has_no_scrape_before_it() -> None:
    here = roomy()
    running(here, 4)
    steps = StepWatch(here.ledger, here.spec.usable_blocks)
    steps.window(sample(), 1.0, backlog_tokens=0.0, prefill_outlook=0.0, token_budget=BUDGET)
    steps.forget()
    assert steps.window(sample(), 2.0, backlog_tokens=0.0, prefill_outlook=0.0, token_budget=BUDGET) is None


@pytest.mark.parametrize(
    ("usage", "waiting", "capacity", "backlog", "full"),
    [
        (0.5, 2, None, BUDGET, True),
        (0.5, 2, None, BUDGET - 1.0, False),  # what waits would fit into one step: it waits for something else
        (0.5, 0, None, BUDGET, False),  # it is on its way, or in its only step
        (0.5, 2, 0, BUDGET, False),  # it waits for a grammar or an adapter
        (0.95, 2, None, BUDGET, False),  # it waits for blocks
        (None, 2, None, BUDGET, False),
    ],
)
def test_a_full_step_is_one_whose_prompts_wait_for_nothing_else(
    usage: float | None, waiting: int, capacity: int | None, backlog: float, full: bool
) -> None:
    here = roomy()
    running(here, 4)
    look = sample(usage=usage, waiting=waiting, capacity=capacity)
    window = watch(here, look, look, advance=10, backlog=backlog)
    assert window is not None
    assert window.prefill_waiting is full
