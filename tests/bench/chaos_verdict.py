"""What may become of a request while replicas fail, and what must be left when all is over.

Each request must answer exactly as a mock asked directly does, or end in one of these ways:

- *shed* (429) or *no replica* (503), with kvgate's own outcome: nothing was lost, the client knows when to come back;
- *cut off*: bytes had gone out already, what was seen is the beginning of the right answer, and a stream says so in an error event.

Anything else is a fault: another text, a 5xx, a connection that ends before a byte, a missing end; and, counted apart, *over budget*:
failed before its first byte since too many requests had been sent again lately. So is a share of refused requests above what had nowhere
to go. With a load of ``a`` of what all do, and ``l`` of their time lost,

    nowhere to go = max(0, 1 - (1 - l) / a)        and ``REFUSED_SPARE`` more, for work lost half done and for coming back slowly
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

REFUSED_SPARE = 0.1
SHED = frozenset({"queue_timeout", "queue_full", "displaced"})


class Fate(StrEnum):
    """What became of a request."""

    CORRECT = "correct"
    SHED = "shed"
    NO_REPLICA = "no_replica"
    CUT_OFF = "cut_off"
    OVER_BUDGET = "over_budget"
    FAULT = "fault"


REFUSED = (Fate.SHED, Fate.NO_REPLICA)


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
    load: float = 0.0  # offered, of what all replicas do while they are well
    replica_s: float = 1.0  # replicas times seconds
    lost_replica_s: float = 0.0  # of those, spent being of no use

    def note(self, reply: Reply, expected: str, at_s: float) -> None:
        """One request ended."""
        fate, why = fate_of(reply, expected)
        self.fates[fate] += 1
        if why:
            self.wrong.append(f"{at_s:.1f} s: {why}")

    @property
    def lost(self) -> float:
        """Share of the replicas' time that faults took."""
        return self.lost_replica_s / self.replica_s

    @property
    def nowhere_to_go(self) -> float:
        """Share of the load that the replicas could not have served."""
        return max(0.0, 1.0 - (1.0 - self.lost) / self.load) if self.load else 0.0

    @property
    def refused(self) -> float:
        """Share of the requests that nobody served."""
        return sum(self.fates[fate] for fate in REFUSED) / max(1, sum(self.fates.values()))

    @property
    def faults(self) -> list[str]:
        """Why it does not hold; empty where it does."""
        found = [f"{self.fates[Fate.FAULT]} requests ended in no documented way"] if self.fates[Fate.FAULT] else []
        found += [f"{self.fates[Fate.OVER_BUDGET]} requests were over budget"] if self.fates[Fate.OVER_BUDGET] else []
        found += [f"left over: {name} {value:g}" for name, value in self.left.items() if value]
        found += [f"{name} is {phase}" for name, phase in self.phases.items() if phase != "serving"]
        if self.refused > self.nowhere_to_go + REFUSED_SPARE:
            found.append(f"{self.refused:.1%} were refused, of which only {self.nowhere_to_go:.1%} had nowhere to go")
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
            f"load: {self.load:.0%} of all replicas, or {self.load / (1 - self.lost):.0%} of what faults left, which took {self.lost:.1%}",
            f"{self.nowhere_to_go:.1%} had nowhere to go, {self.refused:.1%} were refused",
            f"all replicas serve again {recovered} after the last fault",
            *(f"WRONG {line}" for line in self.wrong[:20]),
            *(f"FAULT {line}" for line in self.faults),
            "verdict: " + ("FAILED" if self.faults else "held"),
        ]
