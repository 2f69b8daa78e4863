"""Metrics of the shared store, there only where there is one. Read when somebody asks, as all state is (``adapters.telemetry``)."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from proxy.adapters.metric_families import labelled, unlabelled
from proxy.core.shared import Answer
from proxy.ports.store import StoreFault, StorePhase, StoreState

INTERNAL = "internal"  # a fault of our own, told beside those of the store


def store_metrics(state: StoreState) -> Iterator[Metric]:
    """Yield every metric of a proxy among several."""
    gauges = (
        ("kvgate_store_proxies", "Proxies that share the replicas, this one included, as last heard", len(state.proxies)),
        ("kvgate_store_policies_differing", "Of them, with another policy or version than this one", state.policies_differing),
        ("kvgate_store_ahead_blocks", "Expected blocks of the room that is taken ahead, on all replicas", state.ahead_blocks),
        ("kvgate_store_clock_offset_seconds", "The store's clock less our monotonic one", state.clock_offset_s),
    )
    yield from unlabelled(gauges)
    counters = (
        ("kvgate_store_granted", "Reservations that the store granted", state.granted),
        ("kvgate_store_granted_ahead", "Reservations out of room taken at the store ahead of them", state.granted_ahead),
        (
            "kvgate_store_ahead_refused",
            "Room to be taken ahead that the store refused or did not answer for",
            state.ahead_refused,
        ),
        ("kvgate_store_granted_apart", "Reservations decided here by the proxy's own share", state.granted_apart),
        ("kvgate_store_unanswered", "Reservations that the store did not answer in time", state.unanswered),
        ("kvgate_store_rewrites", "Rows written anew", state.rewrites),
        ("kvgate_store_outages", "Times that the store went out of touch or lost its rows", state.outages),
    )
    yield from unlabelled(counters, counter=True)
    phases = {phase.value: float(phase is state.phase) for phase in StorePhase}
    yield labelled("kvgate_store_phase", "1 for how the proxy stands with the store", "phase", phases)
    yield _counted("kvgate_store_errors", "Calls that failed", "fault", [*map(str, StoreFault), INTERNAL], state.errors)
    refusals = [str(answer) for answer in Answer if answer is not Answer.GRANTED]
    yield _counted("kvgate_store_refused", "Reservations that the store refused", "answer", refusals, state.refused)
    offers = {"made": state.offers_made, "claimed": state.offers_claimed, "passed": state.offers_passed}
    yield _counted("kvgate_store_offers", "Offers of freed room to heads of queues", "end", list(offers), offers)
    yield labelled("kvgate_store_holds_scrape", "1 where this proxy scrapes the replica for all", "replica", state.holds)


def _counted(name: str, text: str, label: str, values: list[str], counts: dict[str, int]) -> Metric:
    """Every value from the start, so that a rate over the first one is seen."""
    return labelled(name, text, label, {value: counts.get(value, 0) for value in values}, counter=True)
