"""The line that a log holds of a finished request: the whole decision, flat, and nothing that is not known."""

from typing import Any

from proxy.core.saturation import Binding
from proxy.wire.decision import Decision, Looked, reason

# What is renamed or told otherwise stands below; the rest is told as it is.
FIELDS = (
    ("id", "request_id"), ("route", "route"), ("outcome", "outcome"), ("class", "traffic_class"), ("tenant", "tenant"),
    ("model", "model"), ("replica", "replica"), ("status", "status"), ("wait_s", "queue_wait_s"), ("ttft_s", "ttft_s"),
    ("tpot_s", "tpot_s"), ("total_s", "total_s"), ("prompt_tokens", "prompt_tokens"), ("prompt_tokens_engine", "prompt_tokens_reported"),
    ("output_tokens", "output_tokens"), ("output_forecast", "output_tokens_forecast"), ("counted", "count_source"),
    ("blocks_mean", "mean_blocks"), ("blocks_ceiling", "ceiling_blocks"), ("ahead", "ahead"), ("degraded_to", "degraded_to"),
    ("fallback", "fallback"), ("failure", "failure"), ("would", "would"),
)  # fmt: skip


def line_of(one: Decision) -> dict[str, Any]:
    """The line's fields. ``held`` and ``placed`` are ``replica:binding:headroom_ratio:score``, the nearest miss or the chosen one first."""
    line = {name: value for name, field in FIELDS if (value := getattr(one, field)) is not None}
    if one.refused is not None:
        line["gate"] = one.refused.gate
    if one.tried:
        line["reroutes"] = len(one.tried)
    if one.held:
        line["held"] = _looks(one.held, one.held_others)
    if one.placed:
        line["placed"] = _looks(one.placed, one.placed_others)
    if one.was_held or one.refused is not None or one.tried or one.failure or one.would:
        line["reason"] = reason(one)
    return line


def _looks(looks: tuple[Looked, ...], others: int) -> str:
    told = [
        f"{one.replica}:{'fits' if one.binding == Binding.NONE else one.binding}:{one.headroom_ratio:.3f}"
        + (f":{one.score:.0f}" if one.score is not None else "")
        for one in looks
    ]
    return ",".join(told) + (f",+{others}" if others else "")
