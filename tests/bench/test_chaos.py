"""The judge of the chaos run finds what it is there to find; a short run holds."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.chaos import run_chaos
from tests.bench.chaos_verdict import Fate, Reply, Verdict, fate_of

TEXT = "one two three"
CUT_OFF = b'data: {"error":{"message":"m","type":"upstream_failed","param":null,"code":"cut_off"}}\n\n'
DONE = b"data: [DONE]\n\n"


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


def whole(text: str) -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}}]}).encode()


def refused(status: int, outcome: str, gate: str = "", **headers: str) -> Reply:
    body = json.dumps({"error": {"gate": gate}}).encode()
    return Reply(True, status, {"x-kvgate-outcome": outcome} | headers, body)


RIGHT = event("one ") + event("two three") + DONE
REPLIES: dict[str, tuple[Reply, Fate]] = {
    "a right stream": (Reply(True, 200, {}, RIGHT), Fate.CORRECT),
    "a right answer": (Reply(False, 200, {}, whole(TEXT)), Fate.CORRECT),
    "another stream": (Reply(True, 200, {}, event("one ") + event("two four") + DONE), Fate.FAULT),
    "a short stream": (Reply(True, 200, {}, event("one ") + DONE), Fate.FAULT),
    "another answer": (Reply(False, 200, {}, whole("one two")), Fate.FAULT),
    "no JSON": (Reply(False, 200, {}, b"\x16\x03\x01"), Fate.FAULT),
    "a stream cut off": (Reply(True, 200, {}, event("one ") + b'data: {"cho\n\n' + CUT_OFF + DONE), Fate.CUT_OFF),
    "a wrong stream cut off": (Reply(True, 200, {}, event("two ") + CUT_OFF + DONE), Fate.FAULT),
    "a stream without an end": (Reply(True, 200, {}, event("one ")), Fate.FAULT),
    "a stream that breaks": (Reply(True, 200, {}, RIGHT, whole=False), Fate.FAULT),
    "a broken answer": (Reply(False, 200, {}, whole(TEXT)[:20], whole=False), Fate.CUT_OFF),
    "a head alone": (Reply(False, 200, {}, b"", whole=False), Fate.FAULT),
    "shed": (refused(429, "queue_timeout", **{"retry-after": "3"}), Fate.SHED),
    "shed without a time": (refused(429, "queue_timeout"), Fate.FAULT),
    "no replica": (refused(503, "no_replica"), Fate.NO_REPLICA),
    "over budget": (refused(502, "upstream_failed", "relay.retry_ratio"), Fate.OVER_BUDGET),
    "all reroutes used up": (refused(502, "upstream_failed", "reroutes"), Fate.FAULT),
    "a time-out": (refused(504, "upstream_failed", "upstream.timeout"), Fate.FAULT),
    "a replica's own 500": (Reply(True, 500, {}, b"chaos"), Fate.FAULT),
    "no answer": (Reply(True, error="reset"), Fate.FAULT),
}


@pytest.mark.parametrize("what", REPLIES)
def test_what_a_reply_is_taken_for(what: str) -> None:
    reply, fate = REPLIES[what]
    found, why = fate_of(reply, TEXT)
    assert found is fate
    assert bool(why) is (fate is Fate.FAULT)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"left": {"leases of r0": 1.0}}, ["left over: leases of r0 1"]),
        ({"phases": {"r0": "ejected"}}, ["r0 is ejected"]),
        ({"fates": {}}, ["nothing was answered"]),
        ({"fates": {Fate.CORRECT: 9, Fate.OVER_BUDGET: 1}}, ["1 requests were over budget"]),
    ],
)
def test_what_must_be_when_all_is_over(changes: dict[str, Any], told: list[str]) -> None:
    verdict = Verdict()
    verdict.note(Reply(True, 200, {}, RIGHT), TEXT, 1.0)
    verdict.phases, verdict.left = {"r0": "serving"}, {"leases of r0": 0.0}
    for name, value in changes.items():
        setattr(verdict, name, type(verdict.fates)(value) if name == "fates" else value)
    assert verdict.faults == told
    assert verdict.lines()[-1] == ("verdict: FAILED" if told else "verdict: held")


@pytest.mark.parametrize(
    ("load", "lost", "shed", "held"),
    [
        (0.8, 0.0, 10, True),
        (0.8, 0.0, 11, False),
        (0.8, 0.2, 10, True),
        (0.8, 0.2, 11, False),
        (0.8, 0.4, 35, True),
        (0.8, 0.4, 36, False),
    ],
)
def test_refusals_are_held_against_what_had_nowhere_to_go(load: float, lost: float, shed: int, held: bool) -> None:
    """At 60 % of the replicas' time, a quarter of a load of 80 % is too much."""
    verdict = Verdict(load=load, replica_s=4.0, lost_replica_s=4.0 * lost)
    verdict.fates.update({Fate.CORRECT: 100 - shed, Fate.SHED: shed})
    assert (verdict.faults == []) is held


def test_a_fault_is_told_with_its_time() -> None:
    verdict = Verdict()
    verdict.note(Reply(True, 200, {}, event("four") + DONE), TEXT, 2.5)
    assert verdict.fates[Fate.FAULT] == 1
    assert verdict.wrong[0].startswith("2.5 s: another text")
    assert verdict.faults[0] == "1 requests ended in no documented way"


@pytest.mark.slow
def test_forty_seconds_of_chaos(tmp_path: Path) -> None:
    verdict = asyncio.run(run_chaos(tmp_path, seconds=40.0, seed=3, speed=0.5))
    assert verdict.faults == [], "\n".join(verdict.lines())
    assert len(verdict.done) >= 5, verdict.done  # of the six ways, each in turn
