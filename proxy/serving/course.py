"""What is noted about one request on its way, and what it comes to in the end."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from proxy.core.considered import Considered
from proxy.core.demand import Demand
from proxy.core.outcome import Outcome, Refusal
from proxy.ports import PromptCount
from proxy.ports.record import RequestRecord
from proxy.ports.tracing import Trace
from proxy.serving.admission import Admission
from proxy.serving.intake import Intake, client_retry_of
from proxy.serving.relay_result import RelayEnd, RelayResult

if TYPE_CHECKING:
    from proxy.serving.call_ends import Flowing
    from proxy.serving.queued_stream import QueuedStream

HELD_ENDS = frozenset(
    {Outcome.QUEUE_TIMEOUT, Outcome.DISPLACED, Outcome.CANCELLED}
)  # of those without a place: they had waited for one
NOWHERE = frozenset[str]()
NATURAL_ENDS = frozenset({"stop", "tool_calls", "function_call"})


@dataclass(slots=True)
class Course:
    """What is noted about one request on its way, for the record at its end."""

    intake: Intake
    counted: PromptCount | None = None
    demand: Demand | None = None
    admission: Admission | None = None
    reroutes: int = 0
    replica: str | None = None
    refusal: Refusal | None = None
    result: RelayResult | None = None
    outcome: Outcome = Outcome.INTERNAL
    status: int | None = None
    line: "QueuedStream | None" = None  # where comments may be sent while it waits
    fallback: str | None = None  # where it was sent instead, as a header tells it
    at_once: bool = False  # another place is tried before it waits
    considered: Considered | None = None  # of one that got no place
    counted_s: float = 0.0  # when its prompt had been counted
    trace: Trace | None = None  # where tracing is on
    tried: list[tuple[str, str]] = field(default_factory=list)  # replicas that failed it before another was tried, and how
    home: str | None = None  # the replica that keeps the conversation it continues
    flowing: "Flowing | None" = None  # once its answer has begun
    request_id: str = field(init=False)  # that client, kvgate and engine call it by
    client_retry: str | None = field(init=False)  # the header that says that it is not the first attempt

    def __post_init__(self) -> None:
        fields = self.intake.fields
        self.request_id, self.client_retry = fields.get("x-request-id", ""), client_retry_of(fields)

    def flows(self) -> None:
        """The answer flows: the request is sent to nobody else any more, and would only lie here as long as the stream lasts."""
        self.intake.forget()
        if self.admission is not None:
            self.admission.tried = NOWHERE

    @property
    def goes_on(self) -> bool:
        """Whether the engine works on after this answer, whoever listens."""
        result = self.result
        if result is None or result.status != 200 or result.answer_id is None or not self.intake.call.background:
            return False
        return not result.stream_done if result.is_stream else result.unfinished

    @property
    def degraded_to(self) -> int | None:
        """The cap of output tokens that it was let in with, where that is less than it asked for."""
        cap = None if self.admission is None else self.admission.lease.demand.output_tokens_max
        return None if cap == self.intake.call.output_tokens_max else cap

    @property
    def output_tokens(self) -> int | None:
        """As the engine's usage says, else as many as were seen."""
        if self.result is None:
            return None
        usage = self.result.usage
        return usage.completion_tokens if usage is not None else self.result.tokens_seen

    @property
    def answered(self) -> bool:
        """Whether the engine gave the answer that was asked for."""
        return self.outcome is Outcome.COMPLETED and self.result is not None and self.result.status == 200

    @property
    def natural(self) -> bool:
        """Whether every choice ended of itself, so that its length is one to learn from."""
        reasons = self.result.finish_reasons if self.result is not None else ()
        return self.answered and bool(reasons) and not self.intake.call.kind.prefill_only and NATURAL_ENDS.issuperset(reasons)

    def conclude(self) -> None:
        """Take the outcome from the relay's end."""
        result = self.result
        if result is None:
            return
        self.status = result.status
        match result.ended:
            case RelayEnd.COMPLETED:
                self.outcome = Outcome.UPSTREAM_FAILED if result.stream_failed else Outcome.COMPLETED
            case RelayEnd.CLIENT_GONE:
                self.outcome = Outcome.CANCELLED
            case RelayEnd.FAILED_MIDSTREAM:
                self.outcome = Outcome.CUT_OFF
            case RelayEnd.FAILED_BEFORE_HEAD | RelayEnd.REFUSED:
                self.outcome = Outcome.UPSTREAM_FAILED

    def record(self, now_s: float) -> RequestRecord:
        """Everything known at its end, for metrics, log and trace."""
        intake, result, admission = self.intake, self.result, self.admission
        usage = result.usage if result is not None else None
        output = self.output_tokens
        ttft_s = tpot_s = itl_s = None
        if result is not None and result.first_token_s is not None:
            ttft_s = result.first_token_s - intake.arrived_s
            if result.is_stream and output is not None and output > 1 and result.last_byte_s is not None:
                tpot_s = (result.last_byte_s - result.first_token_s) / (output - 1)
                events = result.events_seen / max(1, intake.call.n)
                itl_s = (result.last_byte_s - result.first_token_s) / (events - 1.0) if events > 1.0 else None
        counted, lease = self.counted, admission.lease if admission is not None else None
        held = self.outcome in HELD_ENDS if lease is None else lease.held
        return RequestRecord(  # positional, since one is made for every request: names cost more than the values
            self.request_id, intake.route, self.outcome, self.refusal.gate if self.refusal is not None else None,
            intake.traffic_class.name, intake.tenant, intake.model, self.replica, self.status,
            admission.waited_s if admission is not None else None, ttft_s, tpot_s, now_s - intake.arrived_s,
            _tokens(counted) if counted is not None else None,
            usage.prompt_tokens if usage is not None else None, output,
            lease.output_tokens_forecast if lease is not None else None, counted.source if counted is not None else None,
            self.reroutes, intake.traffic_class.ttft_s, intake.traffic_class.tpot_s, intake.arrived_s, intake.call.stream,
            result.finish_reasons if result is not None else (), self.demand, held and self.demand is not None,
            lease.would if lease is not None else None,
            None if admission is None or held else intake.arrived_s + admission.waited_s - intake.read_s,
            intake.client_wait_s, self.refusal, self.considered if lease is None else lease.considered, tuple(self.tried),
            None if result is None else result.failure, self.degraded_to, self.fallback,
            None if counted is None else (intake.read_s, self.counted_s), itl_s, self.client_retry,
        )  # fmt: skip


def _tokens(counted: PromptCount) -> int:
    parts = counted.parts
    return parts[0].tokens if len(parts) == 1 else sum(part.tokens for part in parts)
