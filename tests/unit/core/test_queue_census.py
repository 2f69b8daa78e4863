"""Who waits, by class, tenant and model, in one go or in several."""

from dataclasses import replace

from proxy.core.queue_census import QueueCensus, Wanted
from proxy.core.waiting import Waiting
from tests.support.builders import demand


def waits(request_id: str, *, arrived_s: float, name: str = "default", peak: float = 10.0, **fields: object) -> Waiting:
    """One that waits."""
    one = replace(demand(request_id, arrived_s=arrived_s, **fields), traffic_class=name)  # type: ignore[arg-type]
    return Waiting(one, arrived_s, peak_blocks=peak)


def test_nobody_waits() -> None:
    census = QueueCensus(9.0)
    census.take([], 16)
    assert (census.oldest_s, census.oldest_s_by_class, census.requests_by_tenant, census.wanted_by_model) == (0.0, {}, {}, {})


def test_who_waits_is_counted_the_same_in_several_goes() -> None:
    entries = [
        waits("a", arrived_s=4.0, name="chat", tenant="t"),
        waits("b", arrived_s=2.0, name="chat", tenant="u", copies=3),
        waits("c", arrived_s=1.0, name="bulk", tenant="t", model="n", peak=5.0),
    ]
    whole, parts = QueueCensus(9.0), QueueCensus(9.0)
    whole.take(entries, 16)
    for entry in entries:
        parts.take([entry], 16)
    assert whole == parts
    assert whole.oldest_s_by_class == {"chat": 7.0, "bulk": 8.0}
    assert whole.oldest_s == 8.0
    assert whole.requests_by_tenant == {"t": 2, "u": 1}
    assert whole.wanted_by_model == {"m": Wanted(20.0, 4), "n": Wanted(5.0, 1)}


def test_one_that_came_back_asks_for_its_prompt_at_least() -> None:
    census = QueueCensus(1.0)
    census.take([waits("a", arrived_s=0.0, peak=0.0, prompt=320)], 16)
    assert census.wanted_by_model["m"].peak_blocks == 20.0
