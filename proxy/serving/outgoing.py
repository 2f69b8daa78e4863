"""What goes to the replica, and what its answer carries back: the client's own bytes but for what policy or kvgate change."""

from proxy.core.outcome import Outcome
from proxy.core.policy import AnswerHeaders
from proxy.ports import Headers
from proxy.serving.course import Course
from proxy.serving.ranks import pinned
from proxy.serving.relay_result import RelayRequest
from proxy.serving.services import Services
from proxy.wire.answers import way_headers
from proxy.wire.engine_priority import asked_priority, with_priority
from proxy.wire.openai import inject_usage
from proxy.wire.output_cap import with_output_cap

_DROPPED, _NOTHING = frozenset({b"accept-encoding"}), frozenset[bytes]()  # a compressed stream cannot be looked at
_COMPLETED = (b"x-kvgate-outcome", Outcome.COMPLETED.encode())


def relay_request(services: Services, course: Course, replica: str, *, asks_usage: bool) -> RelayRequest:
    """The request as ``replica`` gets it. ``asks_usage``: the stream is asked for its usage, which is taken out again."""
    intake = course.intake
    cap = course.degraded_to
    body = intake.body if cap is None else with_output_cap(intake.body, intake.call.kind, cap)
    body = inject_usage(body, intake.call) if asks_usage else body
    dropped = _DROPPED if asks_usage else _NOTHING
    headers = pinned(services.upstream_headers(replica, intake.headers, dropped=dropped), replica, intake.route)
    limits = services.policy.tenants.policy_of(intake.tenant)
    if limits.engine_priority_min is not None or limits.engine_priority_max is not None:
        asked = asked_priority(intake.headers, intake.call.priority)
        if (priority := limits.engine_priority(asked)) != asked:
            headers, body = with_priority(headers, body, intake.call.priority, priority)
    if course.trace is not None:
        headers = course.trace.sent(replica, headers)
    return RelayRequest(services.watcher_of(replica).policy.url, b"POST", intake.target, headers, body, repeatable=True)


def answer_headers(services: Services, course: Course) -> Headers | None:
    """What an answer tells of its way here. A relayed answer is completed, as far as its head can know."""
    if services.policy.headers is AnswerHeaders.NONE:
        return None
    waited_s = course.admission.waited_s if course.admission is not None else 0.0
    otherwise = [] if course.fallback is None else [(b"x-kvgate-fallback", course.fallback.encode())]
    if (cap := course.degraded_to) is not None:
        otherwise.append((b"x-kvgate-degraded", b"max_tokens=%d" % cap))
    return [*otherwise, _COMPLETED, *way_headers(waited_s, course.replica)]
