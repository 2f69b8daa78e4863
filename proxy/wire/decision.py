"""What kvgate decided about one request, and why in words: what the admin port, the live page, the log and a snapshot tell of it.

A ``Decision`` is an array on the wire, so that ten thousand of them stay small where they are kept; ``shown`` is the object that people and
programs read. Nothing of a request's content is in it: counts, times, names of class, tenant, model and replica.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec

from proxy.core.outcome import Outcome
from proxy.core.saturation import Binding

BINDING_WORDS = {
    Binding.NONE: "had room",
    Binding.KV: "its KV cache had no room at the forecast peak",
    Binding.SEATS: "all its sequence slots were taken",
    Binding.PREFILL: "the prompts ahead would have made the first token late",
    Binding.TPOT: "one sequence more would have slowed every token beyond a target",
    Binding.ENGINE_QUEUE: "requests waited inside the engine",
    Binding.PACING: "admissions were being spaced, so that they do not all peak together",
    Binding.BURST: "it was preempting",
    Binding.RECOVERY: "it was getting its prefix cache back",
    Binding.PEERS: "another proxy's request came first",
    Binding.WEDGED: "it did nothing",
    Binding.SLOW_START: "it is new or just came back, and gets few at first",
    Binding.UNAVAILABLE: "it could not take it",
}
"""Why a replica did not take a request."""


class Looked(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One replica as the request saw it (``core.considered.ReplicaLook``)."""

    replica: str
    binding: str
    headroom_ratio: float
    usable_blocks: int
    cached_tokens: float
    score: float | None


class Refused(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """``core.outcome.Refusal`` as it was told."""

    gate: str
    message: str
    measured: float | None
    limit: float | None
    unit: str
    policy_key: str | None
    queue_position: int | None
    retry_after_s: float | None


class Decision(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Everything about one request but its content. Times in seconds, ``arrived_wall_s`` since the Unix epoch; None: it did not happen.

    ``outcome`` is None while it is open: then ``phase`` says where it is, and times are those until now.
    """

    request_id: str
    arrived_wall_s: float
    phase: str  # reading, waiting, running, ended
    outcome: str | None
    status: int | None
    route: str
    model: str
    traffic_class: str
    tenant: str
    priority: int
    streaming: bool
    sequences: int
    mode: str
    replica: str | None
    prompt_tokens: int | None
    count_source: str | None
    prompt_tokens_reported: int | None
    output_tokens: int | None
    output_tokens_max: int | None
    output_tokens_forecast: float | None
    degraded_to: int | None
    mean_blocks: float | None
    ceiling_blocks: float | None
    was_held: bool
    ahead: int | None
    held_by: str
    held: tuple[Looked, ...]
    held_others: int
    placed: tuple[Looked, ...]
    placed_others: int
    refused: Refused | None
    tried: tuple[tuple[str, str], ...]  # replicas that failed it, and how
    fallback: str | None
    queue_wait_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    total_s: float
    own_s: float | None
    would: str | None  # what enforcing would have done: hold, shed
    would_wait_s: float | None
    finish_reasons: tuple[str, ...]
    failure: str | None  # of the replica, where it failed the request at last


def reason(one: Decision) -> str:
    """Why it went as it did, in sentences."""
    parts = [_hold(one), *(f"{replica} failed it ({how}), so it was placed anew." for replica, how in one.tried)]
    parts += [_place(one), _end(one), _would(one)]
    return " ".join(part for part in parts if part)


def _hold(one: Decision) -> str:
    if not one.was_held:
        return ""
    still = one.phase == "waiting"
    verb = "Waits" if still else "Waited"
    lasted = f" {_seconds(one.queue_wait_s)}" if one.queue_wait_s is not None else ""
    ahead = f" behind {_count(one.ahead, 'other')}" if one.ahead else ""
    return f"{verb}{lasted}{ahead}: {_why_held(one)}."


def _why_held(one: Decision) -> str:
    if one.held_by == "undisturbed_ratio":
        return "its tenant had its share, and what was free was kept for the other tenants"
    if one.held_by:
        return f"its tenant's {one.held_by} was used up"
    if not one.held:
        return "others were before it" if one.ahead else "no replica could take it"
    warm = min((look for look in one.held if look.binding == Binding.NONE), key=lambda look: -look.headroom_ratio, default=None)
    nearest = one.held[0]
    if warm is not None:
        return f"it was faster to wait for a replica that has its prefix cached than to go to {warm.replica}"
    others = len(one.held) + one.held_others - 1
    among = f", the nearest of {others + 1}" if others else ""
    return f"on {nearest.replica}{among}, {_binding(nearest)}"


def _binding(look: Looked) -> str:
    if look.binding == Binding.KV:
        short = -look.headroom_ratio * look.usable_blocks
        return f"the KV cache was {short:.0f} of {look.usable_blocks} blocks short at the forecast peak"
    return BINDING_WORDS[Binding(look.binding)]


def _place(one: Decision) -> str:
    if not one.placed:
        return f"Forwarded to {one.replica}." if one.replica is not None and one.refused is None else ""
    look, looked = one.placed[0], len(one.placed) + one.placed_others
    left = f"{max(0.0, look.headroom_ratio):.0%} of its KV cache left at the forecast peak"
    cached = f", {look.cached_tokens:.0f} prompt tokens cached there" if look.cached_tokens >= 1.0 else ""
    chosen = ""
    if looked > 1:
        chosen = f", the least delay of {looked} looked at" if look.score is not None else f", {looked} looked at"
    at_once = "" if one.was_held or one.tried else " at once"
    return f"Admitted{at_once} to {look.replica}{chosen}: {left}{cached}."


def _end(one: Decision) -> str:
    degraded = f"Its max_tokens was cut to {one.degraded_to}, as its class allows. " if one.degraded_to is not None else ""
    elsewhere = f"It was sent to {one.fallback} instead. " if one.fallback else ""
    return (degraded + elsewhere + _outcome(one)).strip()


def _outcome(one: Decision) -> str:
    if one.refused is not None:
        back = f" Told to come back in {_seconds(one.refused.retry_after_s)}." if one.refused.retry_after_s is not None else ""
        return f"Refused ({one.outcome}): {one.refused.message}{back}"
    match one.outcome:
        case Outcome.CANCELLED:
            return f"The client left after {_seconds(one.total_s)}."
        case Outcome.CUT_OFF | Outcome.UPSTREAM_FAILED:
            return f"The replica failed{' in the middle of the answer' if one.outcome == Outcome.CUT_OFF else ''}{_how(one)}."
        case Outcome.COMPLETED if one.status is not None and one.status != 200:
            return f"The replica answered with status {one.status}."
        case Outcome.INTERNAL:
            return "Ended by a fault, or by the process that ended."
    return ""


def _how(one: Decision) -> str:
    return f" ({one.failure})" if one.failure else ""


def _would(one: Decision) -> str:
    if one.would is None:
        return ""
    wait = f" for about {_seconds(one.would_wait_s)}" if one.would_wait_s is not None else ""
    return f"Enforcing would have {'held it' if one.would == 'hold' else 'refused it'}{wait}."


def _seconds(value: float | None) -> str:
    if value is None:
        return "an unknown time"
    return f"{value * 1e3:.0f} ms" if value < 1.0 else f"{value:.1f} s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def shown(one: Decision) -> dict[str, Any]:
    """The object that is read: in groups, with the reason in words."""
    return {
        "id": one.request_id,
        "arrived": datetime.fromtimestamp(one.arrived_wall_s, UTC).isoformat(timespec="milliseconds"),
        "phase": one.phase,
        "outcome": one.outcome,
        "status": one.status,
        "reason": reason(one),
        "replica": one.replica,
        "mode": one.mode,
        "request": {
            "route": one.route, "model": one.model, "class": one.traffic_class, "tenant": one.tenant, "priority": one.priority,
            "streaming": one.streaming, "sequences": one.sequences,
        },
        "tokens": {
            "prompt": one.prompt_tokens, "source": one.count_source, "prompt_engine": one.prompt_tokens_reported,
            "output": one.output_tokens, "output_max": one.output_tokens_max, "output_forecast": _round(one.output_tokens_forecast),
            "degraded_to": one.degraded_to,
        },
        "forecast_blocks": {"mean": _round(one.mean_blocks), "ceiling": _round(one.ceiling_blocks)},
        "held": _held_shown(one),
        "placed": _looks_shown(one.placed, one.placed_others) if one.placed else None,
        "refused": None if one.refused is None else _refused_shown(one.refused),
        "tried": [{"replica": replica, "failure": how} for replica, how in one.tried],
        "fallback": one.fallback,
        "failure": one.failure,
        "seconds": {
            "queue_wait": _round(one.queue_wait_s), "ttft": _round(one.ttft_s), "tpot": _round(one.tpot_s, 6),
            "total": _round(one.total_s), "own": _round(one.own_s, 6),
        },
        "would": None if one.would is None else {"action": one.would, "wait_s": _round(one.would_wait_s)},
        "finish_reasons": list(one.finish_reasons),
    }  # fmt: skip


def _held_shown(one: Decision) -> dict[str, Any] | None:
    if not one.was_held:
        return None
    return {"ahead": one.ahead, "share": one.held_by or None, **_looks_shown(one.held, one.held_others)}


def _looks_shown(looks: tuple[Looked, ...], others: int) -> dict[str, Any]:
    return {
        "replicas": [
            {
                "replica": look.replica, "bound_by": look.binding, "headroom_ratio": _round(look.headroom_ratio, 4),
                "peak_blocks": _round((1.0 - look.headroom_ratio) * look.usable_blocks, 1), "usable_blocks": look.usable_blocks,
                "cached_tokens": _round(look.cached_tokens, 0), "score_tokens": _round(look.score, 1),
            }
            for look in looks
        ],
        "others": others,
    }  # fmt: skip


def _refused_shown(one: Refused) -> dict[str, Any]:
    return {field: getattr(one, field) for field in one.__struct_fields__}


def _round(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)
