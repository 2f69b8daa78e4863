"""What may become of a request while replicas fail, and what must be left when all is over.

Each request must answer exactly as a mock asked directly does, or end in one of these ways:

- *shed* (429) or *no replica* (503), with kvgate's own outcome: nothing was lost, the client knows when to come back;
- *cut off*: bytes had gone out already, what was seen is the beginning of the right answer, and a stream says so in an error event;
- *over budget*: failed before its first byte when too many requests had been sent again lately; counted apart.

Anything else is a fault: another text, a 5xx without a budget used up, a connection that ends before a byte, a missing end.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SHED = frozenset({"queue_timeout", "queue_full", "displaced"})


class Fate(StrEnum):
    """What became of a request."""

    CORRECT = "correct"
    SHED = "shed"
    NO_REPLICA = "no_replica"
    CUT_OFF = "cut_off"
    OVER_BUDGET = "over_budget"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. ``whole`` is False where the connection ended before the body did; ``error`` where there was no head at all."""

    stream: bool
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = True
    error: str = ""


def fate_of(reply: Reply, expected: str) -> tuple[Fate, str]:
    """The fate, and of a fault what was wrong."""
    if reply.status is None:
        return Fate.FAULT, f"no answer: {reply.error}"
    if reply.status != 200:
        return _refused(reply)
    if not reply.body:
        return Fate.FAULT, f"a head and no body: {reply.error}"
    return _stream(reply, expected) if reply.stream else _whole(reply, expected)


def _refused(reply: Reply) -> tuple[Fate, str]:
    outcome = reply.headers.get("x-kvgate-outcome", "")
    if reply.status == 429 and outcome in SHED and "retry-after" in reply.headers:
        return Fate.SHED, ""
    if reply.status == 503 and outcome == "no_replica":
        return Fate.NO_REPLICA, ""
    gate = _error_of(reply.body).get("gate")
    if outcome == "upstream_failed" and gate == "relay.retry_ratio":
        return Fate.OVER_BUDGET, ""
    return Fate.FAULT, f"status {reply.status}, outcome {outcome or '-'}, gate {gate}: {reply.body[:200]!r}"


def _error_of(body: bytes) -> dict[str, Any]:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _whole(reply: Reply, expected: str) -> tuple[Fate, str]:
    if not reply.whole:
        return Fate.CUT_OFF, ""  # less than its length: no client takes it for the whole
    try:
        text = json.loads(reply.body)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        return Fate.FAULT, f"no completion: {reply.body[:200]!r}"
    return (Fate.CORRECT, "") if text == expected else (Fate.FAULT, f"another text: {text[:80]!r}, not {expected[:80]!r}")


def _stream(reply: Reply, expected: str) -> tuple[Fate, str]:
    text, done, cut_off = "", False, False
    for event in reply.body.split(b"\n\n"):
        data = event.removeprefix(b"data: ")
        if data == b"[DONE]":
            done = True
            continue
        try:
            value = json.loads(data)
        except ValueError:
            continue  # half an event, which only a cut-off leaves
        if "error" in value:
            cut_off = cut_off or value["error"].get("code") == "cut_off"
            continue
        text += "".join(choice["delta"].get("content") or "" for choice in value["choices"])
    if not done or not reply.whole:
        return Fate.FAULT, f"a stream without an end: {reply.body[-200:]!r} {reply.error}"
    if cut_off:
        return (Fate.CUT_OFF, "") if expected.startswith(text) else (Fate.FAULT, f"another beginning: {text[:80]!r}")
    return (Fate.CORRECT, "") if text == expected else (Fate.FAULT, f"another text: {text[-80:]!r}, not {expected[-80:]!r}")


@dataclass(slots=True)
class Verdict:
    """A run as it is judged. ``left`` is what the proxy and the replicas hold when all is over, by name; all must be 0."""

    fates: Counter[Fate] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    left: dict[str, float] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)  # faults that were made
    phases: dict[str, str] = field(default_factory=dict)  # of the replicas, at the end
    recovered_s: float | None = None  # from the last fault's end until all serve again

    def note(self, reply: Reply, expected: str, at_s: float) -> None:
        """One request ended."""
        fate, why = fate_of(reply, expected)
        self.fates[fate] += 1
        if why:
            self.wrong.append(f"{at_s:.1f} s: {why}")

    @property
    def faults(self) -> list[str]:
        """Why it does not hold; empty where it does."""
        found = [f"{self.fates[Fate.FAULT]} requests ended in no documented way"] if self.fates[Fate.FAULT] else []
        found += [f"left over: {name} {value:g}" for name, value in self.left.items() if value]
        found += [f"{name} is {phase}" for name, phase in self.phases.items() if phase != "serving"]
        if not self.fates[Fate.CORRECT]:
            found.append("nothing was answered")
        return found

    def lines(self) -> list[str]:
        """For people."""
        total = sum(self.fates.values())
        recovered = "never" if self.recovered_s is None else f"{self.recovered_s:.1f} s"
        return [
            f"{total} requests: " + ", ".join(f"{fate} {self.fates[fate]}" for fate in Fate),
            "faults made: " + ", ".join(f"{name} {count}" for name, count in sorted(self.done.items())),
            f"all replicas serve again {recovered} after the last fault",
            *(f"WRONG {line}" for line in self.wrong[:20]),
            *(f"FAULT {line}" for line in self.faults),
            "verdict: " + ("FAILED" if self.faults else "held"),
        ]
