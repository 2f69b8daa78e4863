"""What is kept of a request that holds a lease."""

from proxy.core.events import Arrive, Granted, Observed, ReplicaFound
from proxy.core.gate import Gate
from tests.support.builders import demand, engine_sample, knows_lengths, policy, scrape, spec


def test_what_was_forecast_of_a_request_goes_when_it_has_its_place() -> None:
    """Ten thousand open streams would keep 30 MB of it; who waits still has it."""
    gate = Gate(policy(), 0.0)
    gate.handle(ReplicaFound(spec("r0", usable=100)), 0.0)
    gate.handle(Observed(scrape("r0", 0.0, engine_sample())), 0.0)
    knows_lengths(gate.fleet.model, demand(prompt=385, cap=15))
    for index in range(4):
        gate.handle(Arrive(demand(f"run{index}", prompt=385, cap=15)), 0.2 * index)
        gate.handle(Granted(f"run{index}"), 0.2 * index)
    gate.handle(Arrive(demand("held", prompt=385, cap=15)), 1.0)
    assert [len(entry.curves) for entry in gate.queue.entries()] == [1]
    for index in range(4):
        opened = gate.leases.get(f"run{index}")
        assert opened is not None
        assert opened.entry.curves == {}
