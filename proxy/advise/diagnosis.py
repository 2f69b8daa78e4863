"""From what was watched to what is wrong: symptom, evidence, likely cause, and the first knob to try.

Each rule looks for one cause. It fires on the signs that the cause cannot be without, and weighs the others:

    confidence = (signs seen + ½ · signs that could not be seen) ÷ all signs of the cause

so what was not seen neither speaks for a cause nor against it. Findings come in order of confidence; those of equal confidence with
what stops requests altogether first. Two causes can both be right, and a knob turned for one moves the others: turn one, load again,
compare. Fails: the thresholds are round numbers from experience, and a short watch of a quiet engine shows nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.advise import diagnosis_flags, diagnosis_fleet, diagnosis_load, diagnosis_state
from proxy.advise.finding import Finding
from proxy.advise.watch import KvgateWatch, ReplicaWatch, Targets


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Findings, most certain first; sentences on what could not be seen; and notes on names and flags of this version."""

    findings: tuple[Finding, ...]
    unseen: tuple[str, ...]
    notes: tuple[str, ...]


def in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Most certain first."""
    return tuple(sorted(findings, key=lambda one: (-one.confidence, one.severity, one.where, one.case)))


def diagnose(replicas: Sequence[ReplicaWatch], gates: Sequence[KvgateWatch], targets: Targets) -> Diagnosis:
    """Judge everything that was watched."""
    findings: list[Finding] = []
    unseen: list[str] = []
    notes: list[str] = []
    for replica in replicas:
        findings += diagnosis_state.findings(replica, targets)
        findings += diagnosis_load.findings(replica, targets)
        findings += diagnosis_flags.findings(replica)
        unseen += diagnosis_state.unseen(replica)
        notes += diagnosis_flags.notes(replica)
    findings += diagnosis_fleet.findings(replicas)
    for gate in gates:
        findings += diagnosis_fleet.gate_findings(gate)
    return Diagnosis(in_order(findings), tuple(dict.fromkeys(unseen)), tuple(dict.fromkeys(notes)))
