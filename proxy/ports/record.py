"""What is kept of a request when it has ended."""

from dataclasses import dataclass
from math import inf

from proxy.core.considered import Considered
from proxy.core.demand import CountSource, Demand
from proxy.core.outcome import Outcome, Refusal, Would


@dataclass(slots=True)  # not frozen: that triples the price of making one, and each request makes one
class RequestRecord:
    """One finished request, for metrics, log and learning. Times in seconds; None where it did not happen."""

    request_id: str
    route: str
    outcome: Outcome
    gate: str | None
    traffic_class: str
    tenant: str
    model: str
    replica: str | None
    status: int | None
    queue_wait_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    total_s: float
    prompt_tokens: int | None
    prompt_tokens_reported: int | None
    output_tokens: int | None
    output_tokens_forecast: float | None
    count_source: CountSource | None
    reroutes: int = 0
    ttft_target_s: float | None = None  # the class's, where it has one
    tpot_target_s: float | None = None
    arrived_s: float = 0.0  # by the monotonic clock
    streaming: bool = False
    finish_reasons: tuple[str, ...] = ()
    demand: Demand | None = None  # what the gate was asked for; None: it was not asked
    held: bool = False  # it waited in the queue
    would: Would | None = None  # what enforcing would have done to it
    own_s: float | None = None  # from the body's end to its place, of one that was not held: what kvgate itself takes
    client_wait_s: float = inf  # how long its client would wait for a place
    refusal: Refusal | None = None  # what it was told that was not served
    considered: Considered | None = None  # what was seen of the replicas
    tried: tuple[tuple[str, str], ...] = ()  # replicas that failed it before another was tried, and how
    failure: str | None = None  # how the last one did
    degraded_to: int | None = None  # the cap of output tokens that it was let in with, where it asked for more
    fallback: str | None = None  # where it was sent instead
    tokenized_s: tuple[float, float] | None = None  # when the count of its prompt began and ended, by the monotonic clock
    itl_s: float | None = None  # of a stream, the mean time between the events of one choice
    client_retry: str | None = None  # the header by which its client said that it had asked before
