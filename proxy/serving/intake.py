"""From bytes and headers to a demand: class, tenant, deadline, token counts.

A deadline is the least of the class's, the queue's longest wait, and what clients already send: ``x-kvgate-deadline-ms``, the SDKs'
``x-stainless-read-timeout`` and ``x-stainless-timeout``, Envoy's ``x-envoy-expected-rq-timeout-ms``. A header that is no positive number
is ignored, but for a 0 in our own: what does not fit at once fails at once then. (To the others 0 means that there is no limit.)

A session is what the client says belongs together: ``x-kvgate-session``, vLLM's ``x-session-id``, OpenAI's ``prompt_cache_key``. The
``user`` field is none: one person's conversations share no more than the index of prefixes sees by itself.
"""

from dataclasses import dataclass, replace
from math import inf

from proxy.core.book import Book
from proxy.core.demand import Demand, LengthClass, PromptPart
from proxy.core.policy import Facts, Policy, Saturated, TrafficClass
from proxy.core.policy_tenants import key_digest
from proxy.ports import Headers, PromptCount
from proxy.serving.services import Services
from proxy.wire.call import Call, CallKind
from proxy.wire.lax import UnreadableCallError
from proxy.wire.output_cap import CAP_FIELDS
from proxy.wire.read_call import read_call

FINGERPRINT_BYTES = 2048  # of each end: the newest message, and a body's own bytes beside its length
PARSE_INLINE_BYTES_MAX = 128 * 1024  # about half a millisecond; longer bodies are read in a thread
DEADLINE_HEADERS = (
    ("x-kvgate-deadline-ms", 1e-3),
    ("x-stainless-read-timeout", 1.0),
    ("x-stainless-timeout", 1.0),
    ("x-envoy-expected-rq-timeout-ms", 1e-3),
)
AT_ONCE_HEADER = "x-kvgate-deadline-ms"
PREFILL_TOKENS_AT_ONCE = 16_384  # twice the usual --max-num-batched-tokens: those of one step, and those begun for the next
SEQUENCES_AT_ONCE = 128  # half of the usual --max-num-seqs
RETRY_HEADERS = (  # a count above this says that the client, or a proxy on its way, has asked before
    ("x-stainless-retry-count", 0.0),
    ("x-envoy-attempt-count", 1.0),
)
SESSION_HEADERS = ("x-kvgate-session", "x-session-id")
# Most requests have none of them.
_DEADLINE_NAMES, _RETRY_NAMES, _SESSION_NAMES = (
    frozenset(name for name, _ in DEADLINE_HEADERS), frozenset(name for name, _ in RETRY_HEADERS), frozenset(SESSION_HEADERS),
)  # fmt: skip
NO_FIELDS: dict[str, str] = {}
NO_FACTS = Facts("")
SESSION_CHARS_MAX = 128  # clients choose it, and kvgate remembers thousands


@dataclass(slots=True)  # not frozen: that triples the price of making one, and each request makes one
class Intake:
    """A request as it came, read as far as the gate needs it."""

    route: str
    target: bytes
    headers: Headers
    fields: dict[str, str]  # headers by lower-case name
    body: bytes
    call: Call
    model: str
    traffic_class: TrafficClass
    tenant: str
    arrived_s: float
    deadline_s: float
    facts: Facts  # by which its class was found; ``NO_FACTS`` where there is only one
    read_s: float = 0.0  # when its body had been read
    client_wait_s: float = inf  # how long its client would wait for a place

    def forget(self) -> None:
        """Let go of what only sending it needs. Of a call that the engine may go on with alone its headers are needed to ask for it."""
        self.body = b""
        self.call.forget_text()
        self.fields, self.facts = NO_FIELDS, NO_FACTS
        if not self.call.background:
            self.headers = []


def header_fields(headers: Headers) -> dict[str, str]:
    """Headers by lower-case name; of repeated ones the last."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}


def readable(kind: CallKind, body: bytes) -> Call | None:
    """The call in a body; None for one that only the engine can judge."""
    try:
        return read_call(kind, body)
    except UnreadableCallError:
        return None


def intake_of(
    services: Services, call: Call, route: str, target: bytes, headers: Headers, body: bytes, arrived_s: float, read_s: float,
    *, caller: str | None = None,
) -> Intake:  # fmt: skip
    """The intake of a call that was read from ``body``, beginning at ``read_s``; ``caller`` is the client's IP address."""
    fields = header_fields(headers)
    policy = services.policy
    model = call.model or _default_model(services)
    tenant = policy.tenants.tenant_of(fields, call.user, trusted=policy.trusts(caller))
    if len(policy.classes) == 1:
        traffic_class, facts = policy.classes[0], NO_FACTS
    else:
        adapter = model if _is_adapter(services, model) else None
        facts = Facts(route, model, fields, tenant, key_digest(fields), call.stream, adapter)
        traffic_class = policy.class_of(facts)
    client_s = client_wait_s(fields)
    deadline_s = arrived_s + _wait_s_max(policy, traffic_class, client_s)
    return Intake(
        route, target, headers, fields, body, call, model, traffic_class, tenant, arrived_s, deadline_s, facts, read_s, client_s
    )


def _default_model(services: Services) -> str:
    """What the engine takes when no model is named: its own."""
    for watcher in services.watchers.values():
        if watcher.facts is not None and watcher.facts.models:
            return watcher.facts.models[0]
    return ""


def wait_s_max(policy: Policy, traffic_class: TrafficClass, fields: dict[str, str]) -> float:
    """Seconds the request may wait."""
    return _wait_s_max(policy, traffic_class, client_wait_s(fields))


def _wait_s_max(policy: Policy, traffic_class: TrafficClass, client_s: float) -> float:
    return min(traffic_class.wait_s_max(policy.queue.wait_s_max), traffic_class.deadline_s or inf, client_s)


def client_wait_s(fields: dict[str, str]) -> float:
    """Seconds that its client says it will wait; infinite where it does not say."""
    if _DEADLINE_NAMES.isdisjoint(fields):
        return inf
    if _is_zero(fields.get(AT_ONCE_HEADER)):
        return 0.0
    return min((_positive(fields.get(name)) * unit for name, unit in DEADLINE_HEADERS if name in fields), default=inf)


def client_retry_of(fields: dict[str, str]) -> str | None:
    """The header that says that this is not the request's first attempt; None where none does."""
    if _RETRY_NAMES.isdisjoint(fields):
        return None
    return next((name for name, first in RETRY_HEADERS if name in fields and first < _positive(fields[name]) < inf), None)


def _is_zero(text: str | None) -> bool:
    return text is not None and text.strip() in {"0", "0.0"}


def _positive(text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        return inf
    return value if value > 0.0 else inf


def sizes_matter(policy: Policy) -> bool:
    """Whether the class of a request may be another once its prompt is counted."""
    return len(policy.classes) > 1 and policy.sizes_matter


def sized(services: Services, intake: Intake, counted: PromptCount) -> Intake:
    """The intake with the class that the length of its prompt gives it, which is known only now."""
    policy = services.policy
    if not sizes_matter(policy):
        return intake
    facts = replace(intake.facts, prompt_tokens=sum(part.tokens for part in counted.parts))
    traffic_class = policy.class_of(facts)
    deadline_s = intake.arrived_s + wait_s_max(policy, traffic_class, intake.fields)
    return replace(intake, facts=facts, traffic_class=traffic_class, deadline_s=deadline_s)


def expected_count(services: Services, intake: Intake, books: list[Book]) -> PromptCount | None:
    """What to expect of a prompt whose exact length cannot matter; None: it is to be counted."""
    policy, rates = services.policy, services.dispatcher.gate.rates
    if sizes_matter(policy):
        return None
    refused = rates.active and services.dispatcher.gate.enforces(intake.tenant)
    refused = refused and rates.used_up(intake.tenant, services.clock.now_s())
    return services.uncounted.take(intake.call, books, refused=refused)


async def count(services: Services, intake: Intake, books: list[Book]) -> PromptCount:
    """Count the prompt as the engine will. Raises PromptTooLongError."""
    context = max((book.spec.context_tokens_max for book in books), default=None)
    block_size = books[0].spec.block_size if books else 16
    return await services.counter.count(intake.call, block_size=block_size, context_tokens_max=context)


def demand_of(services: Services, intake: Intake, counted: PromptCount) -> Demand:
    """The gate's view of the request."""
    call, traffic_class = intake.call, intake.traffic_class
    tenant = services.policy.tenants.policy_of(intake.tenant)
    parts = counted.parts
    if call.kind.prefill_only or call.kind is CallKind.SPEECH:
        parts = held_at_once(parts, services.dispatcher.gate.fleet.of_model(intake.model))
    return Demand(
        request_id=services.request_id(),
        parts=parts,
        length_class=LengthClass(intake.model, intake.tenant, call.has_tools),
        arrived_s=intake.arrived_s,
        deadline_s=intake.deadline_s,
        copies=max(1, call.n),
        output_tokens_max=call.output_tokens_max,
        count_source=counted.source,
        traffic_class=traffic_class.name,
        tenant=intake.tenant,
        tenant_weight=tenant.weight * traffic_class.weight,
        priority=tenant.priority + traffic_class.priority,
        may_queue=Saturated.QUEUE in traffic_class.when_saturated,
        degrade_tokens_min=traffic_class.degrade.output_tokens_min if traffic_class.degrade and degradable(intake) else None,
        degrade_first=traffic_class.degrades_first,
        body_bytes=len(intake.body),
        fingerprint=fingerprint_of(intake.body),
        ttft_s=traffic_class.ttft_s,
        tpot_s=traffic_class.tpot_s,
        session=session_of(intake.fields, call.prompt_cache_key),
        adapter=intake.model if _is_adapter(services, intake.model) else "",
        beam_search=call.beam_search,
        shares_prefix=call.shares_prefix,
    )


def held_at_once(parts: tuple[PromptPart, ...], books: list[Book]) -> tuple[PromptPart, ...]:
    """Of prompts that generate nothing, and of pieces of speech, the longest as far as the engine holds them at the same time.

    Each gives its blocks back with its prefill, so of a list of thousands no more are held than a step or two can take; the rest waits in
    the engine, which refuses no list for its length. Bounded by half of the smallest pool and half of its sequences too, at least one.
    """
    specs = [book.spec for book in books]
    room = min([PREFILL_TOKENS_AT_ONCE, *(spec.usable_blocks * spec.block_size // 2 for spec in specs)])
    seats = min([SEQUENCES_AT_ONCE, *(spec.sequences_max // 2 for spec in specs if spec.sequences_max is not None)])
    context = max((spec.context_tokens_max for spec in specs), default=None)
    held: list[PromptPart] = []
    for part in sorted(parts, key=lambda part: part.tokens, reverse=True)[: max(1, seats)]:
        room -= part.tokens
        if held and room < 0:
            break
        # only what generates nothing may fill the context
        held.append(part if part.tokens != context else PromptPart(part.tokens - 1))
    return tuple(held)


def degradable(intake: Intake) -> bool:
    """Whether an answer cut shorter is still one: not with tools or a format, whose half is no use, nor below a least length asked for."""
    call = intake.call
    whole = call.has_tools or call.has_response_format or call.beam_search or b'"min_tokens"' in intake.body
    return call.kind in CAP_FIELDS and not whole


def session_of(fields: dict[str, str], prompt_cache_key: str | None) -> str:
    """The session a request belongs to; "" when it does not say."""
    named = prompt_cache_key
    if not _SESSION_NAMES.isdisjoint(fields):
        named = next((fields[name] for name in SESSION_HEADERS if fields.get(name)), named)
    return (named or "")[:SESSION_CHARS_MAX]


def _is_adapter(services: Services, model: str) -> bool:
    for watcher in services.watchers.values():
        facts = watcher.facts
        if facts is not None and facts.adapters and model in facts.adapters:
            return True
    return False


def fingerprint_of(body: bytes) -> int:
    """What tells a repeated request from others, never 0. It reads the body's two ends only, whatever its length; valid in this process."""
    return hash((len(body), body[:FINGERPRINT_BYTES], body[-FINGERPRINT_BYTES:])) or 1
