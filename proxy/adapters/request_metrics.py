"""Metrics that move as requests end. Labels are outcomes, gates and the policy's classes, all of them closed lists.

A class's children are looked up once, at its first request, so that counting one costs a few microseconds however much is counted.
"""

from prometheus_client import CollectorRegistry

from proxy.adapters.tallies import Histograms, Tallies
from proxy.core.outcome import Outcome, Refusal
from proxy.ports.record import RequestRecord

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
TPOT_SECONDS = (0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)
OVERHEAD_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
POSITIONS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
FORECAST_RATIOS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
UNREAD = ""  # the class of what was refused before anybody looked what it is


class _Families:
    """Every family with a class."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Tallies:
            return Tallies(name, text, (*labels, "traffic_class"), registry)

        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> Histograms:
            return Histograms(name, text, ("traffic_class",), bounds, registry)

        self.requests = counter("kvgate_requests", "Requests ended", "outcome")
        self.refusals = counter("kvgate_refusals", "Requests refused, by the gate that fired", "gate")
        self.ttft_targets = counter("kvgate_ttft_targets", "First tokens beside the class's target", "met")
        self.tpot_targets = counter("kvgate_tpot_targets", "Streams beside the class's TPOT target", "met")
        self.forecast = counter("kvgate_output_forecast_tokens", "Output tokens forecast for requests that were completed")
        self.outcome = counter("kvgate_output_outcome_tokens", "Output tokens that those requests had")
        self.wait = histogram("kvgate_queue_wait_seconds", "Wait for a place", SECONDS)
        self.ttft = histogram("kvgate_ttft_seconds", "Arrival to first token, queue included", SECONDS)
        self.tpot = histogram("kvgate_tpot_seconds", "Per output token after the first", TPOT_SECONDS)
        self.itl = histogram("kvgate_itl_seconds", "Between the events of a stream, mean of each stream", TPOT_SECONDS)
        self.total = histogram("kvgate_request_seconds", "Arrival to end", SECONDS)
        self.position = histogram("kvgate_refusal_position_requests", "Place in the queue at which it was refused", POSITIONS)
        self.ratio = histogram("kvgate_output_forecast_ratio", "Output tokens over those forecast", FORECAST_RATIOS)


class _OfClass:
    """The children of one class."""

    def __init__(self, families: _Families, name: str) -> None:
        self.requests = {outcome: families.requests.of(outcome.value, name) for outcome in Outcome}
        self.name, self.ttft_targets, self.tpot_targets = name, families.ttft_targets, families.tpot_targets
        self.forecast, self.outcome = families.forecast.of(name), families.outcome.of(name)
        self.wait, self.ttft, self.total = families.wait.of(name), families.ttft.of(name), families.total.of(name)
        self.tpot, self.itl = families.tpot.of(name), families.itl.of(name)
        self.position, self.ratio = families.position.of(name), families.ratio.of(name)

    def timed(self, record: RequestRecord) -> None:
        """Take in its times."""
        if record.queue_wait_s is not None:
            self.wait.observe(record.queue_wait_s)
        if record.ttft_s is not None:
            self.ttft.observe(record.ttft_s)
            self._beside(self.ttft_targets, record.ttft_s, record.ttft_target_s)
        if record.tpot_s is not None:
            self.tpot.observe(record.tpot_s)
            self._beside(self.tpot_targets, record.tpot_s, record.tpot_target_s)
        if record.itl_s is not None:
            self.itl.observe(record.itl_s)
        self.total.observe(record.total_s)

    def _beside(self, counter: Tallies, measured_s: float, target_s: float | None) -> None:
        if target_s is not None:
            counter.of("yes" if measured_s <= target_s else "no", self.name).total += 1.0

    def forecast_ended(self, record: RequestRecord) -> None:
        """Hold what was forecast of its output to what came."""
        if record.outcome is not Outcome.COMPLETED or not record.output_tokens or not record.output_tokens_forecast:
            return
        sequences = 1 if record.demand is None else record.demand.sequences
        self.forecast.total += record.output_tokens_forecast * sequences
        self.outcome.total += record.output_tokens
        self.ratio.observe(record.output_tokens / sequences / record.output_tokens_forecast)


class RequestMetrics:
    """Counters and histograms of finished requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._families = _Families(registry)
        self._classes: dict[str, _OfClass] = {}
        self._reroutes = Tallies("kvgate_reroutes", "Requests sent to another replica before the first byte", (), registry).of()
        self._returns = Tallies("kvgate_client_retries", "Requests whose client had asked before", ("header",), registry)
        tokens = Tallies("kvgate_tokens", "Tokens of finished requests", ("kind",), registry)
        self._prompt_tokens, self._output_tokens = tokens.of("prompt"), tokens.of("output")
        text = "From a body's end to its place, of requests that did not wait: what kvgate itself takes"
        self._overhead = Histograms("kvgate_overhead_seconds", text, (), OVERHEAD_SECONDS, registry).of()

    def _class(self, name: str) -> _OfClass:
        found = self._classes.get(name)
        if found is None:
            found = self._classes[name] = _OfClass(self._families, name)
        return found

    def request_finished(self, record: RequestRecord) -> None:
        """Count it."""
        of_class = self._class(record.traffic_class)
        of_class.requests[record.outcome].total += 1.0
        if record.gate is not None:
            self._families.refusals.of(record.gate, record.traffic_class).total += 1.0
        of_class.timed(record)
        of_class.forecast_ended(record)
        if record.refusal is not None and record.refusal.queue_position is not None:
            of_class.position.observe(record.refusal.queue_position)
        if record.reroutes:
            self._reroutes.total += record.reroutes
        if record.client_retry is not None:
            self._returns.of(record.client_retry).total += 1.0
        if record.own_s is not None:
            self._overhead.observe(record.own_s)
        if record.prompt_tokens_reported:
            self._prompt_tokens.total += record.prompt_tokens_reported
        if record.output_tokens:
            self._output_tokens.total += record.output_tokens

    def refused_unread(self, refusal: Refusal) -> None:
        """Count one that was refused whatever it asked for."""
        self._families.requests.of(refusal.outcome.value, UNREAD).total += 1.0
        self._families.refusals.of(refusal.gate, UNREAD).total += 1.0
