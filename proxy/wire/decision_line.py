"""The line that a log holds of a finished request: the whole decision, flat, and nothing that is not known."""

from typing import Any

import msgspec

from proxy.core.saturation import Binding
from proxy.wire.decision import Decision, Looked, reason

EVENT = "request.finished"


class Line(
    msgspec.Struct, omit_defaults=True, gc=False,
    rename={
        "request_id": "id", "traffic_class": "class", "queue_wait_s": "wait_s", "prompt_tokens_reported": "prompt_tokens_engine",
        "output_tokens_forecast": "output_forecast", "count_source": "counted", "mean_blocks": "blocks_mean",
        "ceiling_blocks": "blocks_ceiling",
    },
):  # fmt: skip
    """What is None is not told. The first four and the last are every line's own (``adapters.log_output``).

    ``held`` and ``placed`` are ``replica:binding:headroom_ratio:score``, the nearest miss or the chosen one first.
    """

    time: str | None = None
    level: str | None = None
    logger: str | None = None
    event: str | None = None
    request_id: str | None = None
    route: str | None = None
    outcome: str | None = None
    traffic_class: str | None = None
    tenant: str | None = None
    model: str | None = None
    replica: str | None = None
    status: int | None = None
    queue_wait_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    total_s: float | None = None
    prompt_tokens: int | None = None
    prompt_tokens_reported: int | None = None
    output_tokens: int | None = None
    output_tokens_forecast: float | None = None
    count_source: str | None = None
    mean_blocks: float | None = None
    ceiling_blocks: float | None = None
    ahead: int | None = None
    degraded_to: int | None = None
    fallback: str | None = None
    failure: str | None = None
    would: str | None = None
    gate: str | None = None
    reroutes: int | None = None
    held: str | None = None
    placed: str | None = None
    reason: str | None = None
    process: int | None = None


def decision_line(
    one: Decision, time: str | None = None, level: str | None = None, logger: str | None = None, event: str | None = None
) -> Line:
    """The line of a finished request. Positional, since one is made for every request."""
    worded = one.was_held or one.refused is not None or one.tried or one.failure or one.would
    return Line(
        time, level, logger, event, one.request_id, one.route, one.outcome, one.traffic_class, one.tenant, one.model, one.replica,
        one.status, one.queue_wait_s, one.ttft_s, one.tpot_s, one.total_s, one.prompt_tokens, one.prompt_tokens_reported,
        one.output_tokens, one.output_tokens_forecast, one.count_source, one.mean_blocks, one.ceiling_blocks, one.ahead,
        one.degraded_to, one.fallback, one.failure, one.would, None if one.refused is None else one.refused.gate,
        len(one.tried) or None, _looks(one.held, one.held_others) if one.held else None,
        _looks(one.placed, one.placed_others) if one.placed else None, reason(one) if worded else None,
    )  # fmt: skip


def fields_of_line(line: Line) -> dict[str, Any]:
    """What is told of it, by name."""
    told: dict[str, Any] = msgspec.to_builtins(line)
    return told


def line_of(one: Decision) -> dict[str, Any]:
    """The line's own fields."""
    return fields_of_line(decision_line(one))


def _looks(looks: tuple[Looked, ...], others: int) -> str:
    told = [
        f"{one.replica}:{'fits' if one.binding == Binding.NONE else one.binding}:{one.headroom_ratio:.3f}"
        + (f":{one.score:.0f}" if one.score is not None else "")
        for one in looks
    ]
    return ",".join(told) + (f",+{others}" if others else "")
