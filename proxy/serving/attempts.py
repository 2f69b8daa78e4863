"""What an attempt at a replica says of the replica, and whether the request is tried elsewhere.

Only while the client has seen nothing, and only what no harm is done by sending twice: calls that generate. Tried elsewhere is, within
``relay.reroutes_max``, the retry budget (``core.retry_budget``) and the request's deadline:

- a replica that cannot be spoken to: connection refused or lost, a time-out, an answer that is no HTTP;
- one that answers 5xx: counted against it (``core.health``) unless others answer the same request so too (``core.blame``), or it is
- 503, or 429: its own full queue, which is backpressure and nobody's fault.

Where it goes next, and when to a replica that has failed it before, says ``core.retrying``. An answer is shown as soon as ``ANSWERS_MAX``
replicas gave one, or all there are and none of them lost the request otherwise: what so many refuse is hardly their fault, and the client
can do more with what they say than with a 502. One that says so twice is still one, but of twice as many answers the last is shown. 4xx
are the client's to see, and never count. When nobody else is left, or the budget is used up, the client gets the last replica's own
answer as it is where there is one, else 502, or 504 after a time-out.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from proxy.core.blame import Blame, Failure
from proxy.core.outcome import Outcome, Refusal
from proxy.core.retry_budget import RetryBudget
from proxy.ports import Clock, UpstreamError
from proxy.serving.outstanding import Outstanding
from proxy.serving.ranks import server_of
from proxy.serving.relay_result import RelayEnd, RelayHooks, RelayResult
from proxy.serving.watcher import ReplicaWatcher
from proxy.wire.answers import GATE_UPSTREAM_TIMEOUT

BACKPRESSURE = frozenset({429, 503})
TRIED_ELSEWHERE = BACKPRESSURE | frozenset(range(500, 600))
NOBODY = frozenset[int]()
ANSWERS_MAX = 3
RETRY_S = 2.0  # health checks come every second or so
UNSENDABLE = "request"  # the kind of error that is the request's own


@dataclass(slots=True)
class Tried:
    """What one request has met: ``refused`` are the replicas whose answer the client was not shown, in their order."""

    refused: list[str] = field(default_factory=list)
    blame: Blame = field(default_factory=Blame)


class Attempts:
    """Judges attempts; the state is the budget, and counts for metrics."""

    def __init__(
        self, clock: Clock, budget: RetryBudget, watchers: Mapping[str, ReplicaWatcher], outstanding: Outstanding
    ) -> None:  # fmt: skip
        self.budget = budget
        self.timeouts: Counter[str] = Counter()  # by the policy key of the patience that was over
        self._clock = clock
        self._watchers = watchers
        self._outstanding = outstanding

    def begin(self) -> Tried:
        """A request is sent for the first time."""
        self.budget.sent(self._clock.now_s())
        return Tried()

    def refused(self, tried: Tried, asked: str, *, others: bool) -> frozenset[int]:
        """The statuses that the client is not to see yet from the replica that is ``asked`` now. ``others``: another one may take it."""
        if not others:
            return NOBODY
        enough = len({*tried.refused, server_of(asked)}) >= ANSWERS_MAX or len(tried.refused) + 1 >= 2 * ANSWERS_MAX
        return TRIED_ELSEWHERE if not enough and self.left else NOBODY

    @property
    def left(self) -> bool:
        """Whether anything may be sent a second time now: by us, or by a client that is told so."""
        return self.budget.left(self._clock.now_s()) > 0

    def hooked(self, tried: Tried, hooks: RelayHooks) -> RelayHooks:
        """Look at the next answer, where it shows whose fault those before were."""
        if not tried.blame.undecided:
            return hooks

        def answers(status: int) -> None:
            if status in TRIED_ELSEWHERE:
                return
            for failure in tried.blame.answered():
                self._charge(failure)

        return replace(hooks, on_head=answers)

    def again(self, replica: str, result: RelayResult, tried: Tried, *, others: bool) -> bool:
        """Take in how an attempt ended; True when the request is to be tried elsewhere, which draws on the budget."""
        server = server_of(replica)
        self._judge(server, result, tried)
        if result.ended is RelayEnd.REFUSED:
            tried.refused.append(server)
        if result.status is not None and result.status not in TRIED_ELSEWHERE:
            self.budget.answered(self._outstanding.under_way)
        if result.ended not in {RelayEnd.REFUSED, RelayEnd.FAILED_BEFORE_HEAD} or not others:
            return False
        if result.error is not None and result.error.kind == UNSENDABLE:
            return False
        return self.budget.take(self._clock.now_s())

    def _judge(self, server: str, result: RelayResult, tried: Tried) -> None:
        error, watcher = result.error, self._watchers.get(server)
        if error is not None and error.limit:
            self.timeouts[error.limit] += 1
        if watcher is None:  # it was taken out meanwhile
            return
        match result.ended:
            case RelayEnd.CLIENT_GONE:
                return
            case RelayEnd.COMPLETED | RelayEnd.REFUSED:
                if result.stream_failed or (
                    result.status is not None and result.status >= 500 and result.status not in BACKPRESSURE
                ):
                    why = f"status {result.status}" if not result.stream_failed else "an error in the stream"
                    self._met(Failure(server, why, result.sent_s), tried.blame)
                elif result.status not in BACKPRESSURE:
                    watcher.answered_request()
            case RelayEnd.FAILED_BEFORE_HEAD | RelayEnd.FAILED_MIDSTREAM:
                if error is not None and error.kind != UNSENDABLE and error.limit != "relay.total":  # a long answer is no fault
                    watcher.failed_request(str(error), result.sent_s)
                    watcher.suspect()

    def _met(self, failure: Failure, blame: Blame) -> None:
        counts, taken_back = blame.met(failure)
        if counts is not None:
            self._charge(counts)
        if taken_back is not None and taken_back.replica in self._watchers:
            self._watchers[taken_back.replica].acquitted(taken_back.sent_s)

    def _charge(self, failure: Failure) -> None:
        watcher = self._watchers.get(failure.replica)
        if watcher is not None:
            watcher.failed_request(failure.why, failure.sent_s)

    def failure(self, result: RelayResult, *, others: bool) -> Refusal:
        """What a client is told whose request no replica answered. ``others``: there was one more, but the budget did not allow it."""
        error = result.error
        if error is not None and error.kind == "timeout":
            message = f"The replica did not answer in time: {error}"
            return Refusal(Outcome.UPSTREAM_FAILED, gate=GATE_UPSTREAM_TIMEOUT, message=message, policy_key=error.limit or None)
        reason = _reason(error, result.status)
        if others and (error is None or error.kind != UNSENDABLE):
            limit = self.budget.ratio
            message = f"A replica failed: {reason}. Too many requests were sent a second time lately, so this one was not."
            key = "relay.retry_ratio"
            return Refusal(Outcome.UPSTREAM_FAILED, gate=key, message=message, limit=limit, policy_key=key, retry_after_s=RETRY_S)
        message = f"No replica could be spoken to: {reason}"
        return Refusal(
            Outcome.UPSTREAM_FAILED, gate="reroutes", message=message, policy_key="relay.reroutes_max", retry_after_s=RETRY_S
        )


def _reason(error: UpstreamError | None, status: int | None) -> str:
    return f"status {status}" if error is None else str(error)
