"""What stands in Redis, read as the words of proxies: each by itself, of the kinds and within the bounds of all that a proxy tells.

Whoever has the password can write anything there. A word that no proxy can have told raises ValueError, is passed over by the reader and
taken out of the store, so that it is met once; it never reaches the gate, where its like would be a fault of our own, of which ten switch
admission off. A newer proxy's word may tell more than we know: fields beyond ours are passed over.

Fails: a well-formed lie is believed (SECURITY.md): a mode, a drain, blocks of a proxy that is not there.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import fields as fields_of
from math import inf
from typing import Any

from proxy.core.exchange import Completion, TenantKey
from proxy.core.length_names import Key
from proxy.core.outcome import Mode
from proxy.core.override import DRAIN, LASTS_S_MAX, MODE, TEXT_CHARS_MAX, Override
from proxy.core.replica import ReplicaPhase
from proxy.core.shared import Record
from proxy.core.shared_health import Notice
from proxy.core.tenant_accounts import LEVELS_MAX, NO_LEVELS, Level, Levels
from proxy.ports.store import KeptResponse, ProxyCard

TEXT_MAX = 1000  # of a name: models and replicas are named by paths and addresses
BLOCKS_MAX = 1e12  # the scripts' own bound (``lua/account.lua``)
STEPS_MAX = 1e15  # of steps, seconds, tokens, and token-time, which a double still counts one by one
PRIORITY_MAX = 1_000_002  # the highest that stands in the place of one (``core.exchange``)
Z_MAX = 10.0  # a policy's
SLACK_S = 60.0  # by which two clocks may differ that tell how long a word lasts
CARD_FIELDS = tuple(one.name for one in fields_of(ProxyCard))
OVERRIDE_FIELDS = tuple(one.name for one in fields_of(Override))
RECORD_FIELDS = tuple(one.name for one in fields_of(Record))
MALFORMED = (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError)


class UnknownWordError(Exception):
    """Well-formed, and of a newer version: it is passed over and left where it is."""


def text(told: object, chars_max: int = TEXT_MAX) -> str:
    """A string that can be shown and sent on."""
    if not isinstance(told, str) or len(told) > chars_max:
        raise ValueError("no text, or a longer one than any proxy tells")
    told.encode()  # halves of surrogate pairs
    return told


def number(told: object, least: float = 0.0, most: float = STEPS_MAX) -> Any:
    """A number as JSON has it, within bounds; not NaN."""
    if isinstance(told, bool) or not isinstance(told, int | float) or not least <= told <= most:
        raise ValueError("no number, or one beyond what any proxy tells")
    return told


def whole(told: object, least: int = 0, most: int = int(STEPS_MAX)) -> int:
    """A whole number within bounds."""
    if not isinstance(told, int):
        raise ValueError("no whole number")  # noqa: TRY004  one kind of error for all
    return int(number(told, least, most))


def flag(told: object) -> bool:
    """A truth value."""
    if not isinstance(told, bool):
        raise ValueError("neither true nor false")  # noqa: TRY004  one kind of error for all
    return told


def _or_none(read: Callable[..., Any], told: object, *bounds: float) -> Any:
    return None if told is None else read(told, *bounds)


def card_of(field: bytes, data: bytes) -> ProxyCard:
    """The card of the proxy that the field names."""
    told = json.loads(data)
    fields = {name: told[name] for name in CARD_FIELDS if name in told}
    if text(fields["proxy"]) != field.decode():
        raise ValueError("a card under another name")
    for name in ("policy_digest", "version", "mode", "admin"):
        text(fields[name])
    number(fields["seen_s"])
    most = int(PRIORITY_MAX)
    clocks = tuple((whole(priority, -most, most), number(virtual, -STEPS_MAX)) for priority, virtual in fields["clocks"])
    health = tuple(_notice(*one[: len(Notice._fields)]) for one in fields.get("health", ()))
    period, levels = fields.get("levels", NO_LEVELS)
    told_levels = tuple(_level(*one[: len(Level._fields)]) for one in levels[:LEVELS_MAX])
    return ProxyCard(**fields | {"clocks": clocks, "health": health, "levels": Levels(whole(period, -1), told_levels)})


def _level(priority: object, tenant: object, offset: object, charged: object, *line: object) -> Level:
    most = int(PRIORITY_MAX)
    who = whole(priority, -most, most), text(tenant)
    return Level(*who, number(offset, -STEPS_MAX), number(charged, -STEPS_MAX), *(number(one) for one in line))


def _notice(replica: object, ejected_s: object, until_s: object, streak: object, answered_s: object) -> Notice:
    return Notice(
        text(replica), _or_none(number, ejected_s), number(until_s), whole(streak, 0, 1_000_000), _or_none(number, answered_s)
    )


def override_of(field: bytes, data: bytes, store_s: float) -> Override:
    """What was said of the subject that the field names. Raises UnknownWordError for a word of a newer version."""
    told = json.loads(data)
    said = Override(**{name: told[name] for name in OVERRIDE_FIELDS if name in told})
    if text(said.subject) != field.decode():
        raise ValueError("said of another subject")
    for words in (said.reason, said.by, said.serial):
        text(words, TEXT_CHARS_MAX)
    number(said.until_s, 0.0, store_s + LASTS_S_MAX + SLACK_S)
    word = _or_none(text, said.word)
    known = {MODE: tuple(Mode)}.get(said.subject, ("drain",) if said.subject.startswith(DRAIN) else ())
    if word is not None and word not in known:
        raise UnknownWordError(f"a word that this version does not know: {said.subject[:40]}")
    return said


def completion_of(told: Sequence[Any]) -> Completion:
    """One request that ended."""
    replica, leaf, tokens, natural, prompt, total, completed, kv_limited = told[: len(Completion._fields)]
    return Completion(
        text(replica), _leaf(leaf), number(tokens), flag(natural), whole(prompt), number(total), flag(completed), flag(kv_limited)
    )


def _leaf(told: Sequence[Any]) -> Key:
    """A class of lengths, as ``core.length_names`` has it."""
    model, tenant, tools, prompt, cap = told
    return text(model), text(tenant), flag(tools), whole(prompt, -1, 64), whole(cap, -1, 64)


def kept_of(told: Sequence[Any]) -> KeptResponse:
    """Where a response lives."""
    response_id, replica, *tokens = told[: len(KeptResponse._fields)]
    return KeptResponse(text(response_id), text(replica), *(whole(one) for one in tokens))


def account_of(field: bytes, data: bytes) -> tuple[TenantKey, float]:
    """What all proxies charged a tenant."""
    priority, bar, tenant = field.decode().partition("|")
    if not bar or len(priority) > 8:  # digits of the least one, and its sign
        raise ValueError("no priority")
    most = int(PRIORITY_MAX)
    return (whole(int(priority), -most, most), text(tenant)), number(float(data), -STEPS_MAX)


def record_fields(data: bytes) -> dict[str, Any]:
    """The fields of a replica's record."""
    told = json.loads(data)
    fields: dict[str, Any] = {name: told[name] for name in RECORD_FIELDS if name in told}
    text(fields["replica"]), text(fields["holder"])
    fields["phase"] = ReplicaPhase(fields["phase"])
    number(fields["steps"], -STEPS_MAX)
    for name in ("engine_epoch", "usable_blocks", "preemptions_total", "published_s", "steps_per_s"):
        number(fields[name])
    number(fields["burst_until_s"], -inf)
    number(fields["z"], 0.0, Z_MAX)
    number(fields["sigma_blocks"], 0.0, BLOCKS_MAX)
    number(fields["bias_blocks"], -BLOCKS_MAX, BLOCKS_MAX)
    for name in ("sequences_max", "measured_blocks", "running", "waiting", "sampled_s", "waiting_for_room"):
        _or_none(number, fields.get(name))
    for name in ("prompt_tokens_total", "generation_tokens_total", "prefix_hits_tokens_total"):
        _or_none(number, fields.get(name))
    return fields
