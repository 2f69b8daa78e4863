"""What a policy makes of one request: its class, and why each rule held or not; its tenant; where it may go; every key that rules it.

Nothing is decided here. Each answer comes from the code that serves (``Match.covers``, ``Tenants.tenant_of``, ``intake.wait_s_max``),
asked once as it is and once without the part in question, so an explanation cannot drift from what is done.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

from proxy.config.scalars import Scalar
from proxy.config.schema import POLICY
from proxy.config.schema_classes import CLASS, MATCH
from proxy.config.shape import Section
from proxy.config.written import Written
from proxy.core.observing import among_first
from proxy.core.outcome import Mode
from proxy.core.policy import Policy
from proxy.core.policy_classes import Facts, Match, Saturated, TokenRange, TrafficClass
from proxy.core.policy_tenants import NOBODY, Auth, TenantSource, key_digest
from proxy.serving.intake import wait_s_max
from proxy.wire.call import Call

OTHERS = "others"
NOT_SHOWN = frozenset({"authorization", "x-api-key", "api-key", "cookie", "proxy-authorization"})  # what they say is a secret


@dataclass(frozen=True, slots=True)
class Asked:
    """The request in question; header names are in lower case. ``caller`` None: one that the policy trusts.

    ``prompt_tokens`` None: not known, so that no condition on it holds. ``is_adapter``: the model it names is a LoRA adapter.
    """

    path: str
    headers: Mapping[str, str]
    call: Call
    caller: str | None = None
    prompt_tokens: int | None = None
    is_adapter: bool = False

    def trusted_by(self, policy: Policy) -> bool:
        """Whether its headers and its token are believed."""
        return self.caller is None or policy.trusts(self.caller)


@dataclass(frozen=True, slots=True)
class Rule:
    """One condition of a class: ``key`` as in the file, what it takes, what the request has (None: nothing), and whether it held."""

    key: str
    takes: str
    has: str | None
    held: bool


@dataclass(frozen=True, slots=True)
class ClassSeen:
    """A class of the policy, in the file's order. ``verdict`` is ``chosen``, ``no match`` or ``not asked``; no line: it is built in."""

    name: str
    verdict: str
    line: int | None
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """A place where the tenant's name may come from; ``names`` is None where it names nobody."""

    source: str
    names: str | None


@dataclass(frozen=True, slots=True)
class Limit:
    """A key that rules the request, its value as written, and the file's line; no line: it is the default."""

    key: str
    value: str
    line: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """All of it. ``wait_s_max`` is how long the request may wait, ``wait_because`` what bounds it.

    ``enforced``: whether it can be held and refused (``mode`` and ``enforce_ratio``). ``key_known``: whether its key opens the door
    under ``auth: require``; None where any does. ``discovered``: there are more replicas, or all, that ``discovery`` tells of.
    """

    mode: str
    enforced: bool
    key_known: bool | None
    path: str
    model: str | None
    stream: bool
    output_tokens_max: int | None
    copies: int
    prompt_bytes: int
    traffic_class: str
    classes: tuple[ClassSeen, ...]
    tenant: str
    sources: tuple[SourceSeen, ...]
    replicas: tuple[str, ...]
    discovered: bool
    wait_s_max: float
    wait_because: str
    limits: tuple[Limit, ...]


def explain(policy: Policy, asked: Asked, own: Mapping[str, Written], default: Mapping[str, Written]) -> Explanation:
    """Explain a request. ``own`` and ``default`` are what the file and the shipped default say, by key."""
    call = asked.call
    tenant = policy.tenants.tenant_of(asked.headers, call.user, trusted=asked.trusted_by(policy))
    facts = Facts(
        asked.path, call.model or "", asked.headers, tenant, key_digest(asked.headers), call.stream,
        call.model if asked.is_adapter else None, asked.prompt_tokens,
    )  # fmt: skip
    chosen = policy.class_of(facts)
    wait_s, because = _wait(policy, chosen, asked.headers)
    return Explanation(
        mode=str(policy.mode),
        enforced=policy.mode is Mode.ENFORCE and among_first(policy.enforce_ratio, tenant),
        key_known=facts.key_sha256 in policy.tenants.by_key if policy.auth is Auth.REQUIRE else None,
        path=asked.path,
        model=call.model,
        stream=call.stream,
        output_tokens_max=call.output_tokens_max,
        copies=call.n,
        prompt_bytes=call.prompt_bytes,
        traffic_class=chosen.name,
        classes=tuple(_classes(policy, chosen, facts, own)),
        tenant=tenant,
        sources=tuple(_sources(policy, asked)),
        replicas=tuple(server.name for server in policy.replicas),
        discovered=policy.discovery.on,
        wait_s_max=wait_s,
        wait_because=because,
        limits=tuple(_limits(policy, chosen, tenant, own, default)),
    )


# ---- classes


def _classes(policy: Policy, chosen: TrafficClass, facts: Facts, own: Mapping[str, Written]) -> Iterator[ClassSeen]:
    verdict = "no match"
    for index, seen in enumerate(policy.classes):
        if seen is chosen:
            verdict = "chosen"
        name = own.get(f"classes[{index}]")
        yield ClassSeen(seen.name, verdict, name.line if name else None, tuple(_rules(seen.match, facts)))
        if seen is chosen:
            verdict = "not asked"


def _rules(match: Match, facts: Facts) -> Iterator[Rule]:
    for key, takes, alone in _conditions(match):
        yield Rule(key, takes, _has(key, facts), alone.covers(facts))


def _conditions(match: Match) -> Iterator[tuple[str, str, Match]]:
    """Yield each condition's key, what it takes, and a match of that condition alone."""
    names = {key.field: name for name, key in MATCH.keys.items()}
    for part in fields(match):
        value = getattr(match, part.name)
        if part.name == "headers":
            for name, glob in value:
                yield f"headers.{name}", glob, Match(headers=((name, glob),))
        elif value is not None and value != ():
            yield names[part.name], _written(value), replace(Match(), **{part.name: value})


def _written(value: object) -> str:
    """A condition as a policy file has it."""
    if isinstance(value, TokenRange):
        return f"min {value.least}" + ("" if value.most is None else f", max {value.most}")
    return ", ".join(value) if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else str(value)


def _has(key: str, facts: Facts) -> str | None:
    kind, _, name = key.partition(".")
    if kind == "headers":
        return "a value not shown here" if name in NOT_SHOWN and name in facts.headers else facts.headers.get(name)
    return {
        "model": facts.model or None,
        "path": facts.path,
        "tenant": facts.tenant,
        "key_sha256": facts.key_sha256,
        "stream": _written(facts.stream),
        "lora": facts.adapter,
        "prompt_tokens": None if facts.prompt_tokens is None else str(facts.prompt_tokens),
    }[kind]


# ---- tenant, wait, limits


def _sources(policy: Policy, asked: Asked) -> Iterator[SourceSeen]:
    tenants, trusted = policy.tenants, asked.trusted_by(policy)
    labels = {TenantSource.HEADER: f"header {tenants.header}", TenantSource.JWT: f"jwt claim {tenants.jwt_claim}"}
    for source in tenants.sources:
        name = replace(tenants, sources=(source,)).tenant_of(asked.headers, asked.call.user, trusted=trusted)
        yield SourceSeen(labels.get(source, str(source)), None if name == NOBODY else name)


def _wait(policy: Policy, chosen: TrafficClass, headers: Mapping[str, str]) -> tuple[float, str]:
    """Return how long the request may wait, and which bound that is: the one without which it could wait longer."""
    if Saturated.QUEUE not in chosen.when_saturated:
        return 0.0, f"when_saturated of the class {chosen.name}, which does not list queue"
    bound_s = wait_s_max(policy, chosen, dict(headers))
    for name in headers:
        if wait_s_max(policy, chosen, {other: value for other, value in headers.items() if other != name}) > bound_s:
            return bound_s, f"the header {name}"
    if wait_s_max(policy, replace(chosen, deadline_s=None), dict(headers)) > bound_s:
        return bound_s, f"the deadline of the class {chosen.name}"
    return bound_s, "queue.wait_max" if chosen.queue.wait_s_max is None else f"queue.wait_max of the class {chosen.name}"


def _limits(
    policy: Policy, chosen: TrafficClass, tenant: str, own: Mapping[str, Written], default: Mapping[str, Written]
) -> Iterator[Limit]:
    """Yield the keys of the class, of the tenant and of the queue."""
    index = policy.classes.index(chosen)
    for name, key in CLASS.keys.items():
        if not isinstance(key.reader, Scalar):
            if name != "match":
                yield from _written_below(f"classes[{index}].{name}", own)
        elif name != "name":
            yield from _limit(f"classes[{index}].{name}", getattr(chosen, key.field), own, default)
    weight_of = f"tenants.weights.{tenant}"
    rows = [path for path in (f"tenants.list.{tenant}", weight_of, f"tenants.{OTHERS}") if path in own]
    for path in rows[:2] if rows[:1] == [weight_of] else rows[:1]:  # who has a weight alone is one of the others for the rest
        yield from _written_below(path, own)
    if not rows:
        yield from _limit(weight_of, policy.tenants.weight_of(tenant), own, default)
    queue = POLICY.keys["queue"].reader
    for name in queue.keys if isinstance(queue, Section) else ():
        yield from _limit(f"queue.{name}", None, own, default)


def _written_below(path: str, own: Mapping[str, Written]) -> Iterator[Limit]:
    """Yield what the file says of a key that holds more than one value, unless it says nothing."""
    if path in own and own[path].text:
        yield Limit(path, own[path].text, own[path].line)
        return
    for name, found in own.items():
        if name.startswith((f"{path}.", f"{path}[")) and found.text and not name.endswith("key_sha256"):
            yield Limit(name, found.text, found.line)


def _limit(path: str, inside: object, own: Mapping[str, Written], default: Mapping[str, Written]) -> Iterator[Limit]:
    """Yield a key as the file has it, else as the shipped default has it, else its inside value where it has one."""
    if path in own:
        yield Limit(path, own[path].text, own[path].line)
    elif path in default:
        yield Limit(path, default[path].text, None)
    elif inside is not None:
        yield Limit(path, f"{inside:g}" if isinstance(inside, float) else str(inside), None)
