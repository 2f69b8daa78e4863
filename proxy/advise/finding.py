"""One thing found, and how sure one can be of it."""

from dataclasses import dataclass

from proxy.advise.watch import EngineWatch, ReplicaWatch


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause, of ``where`` (a URL, an engine, or the fleet). ``severity`` orders equals: 0 stops requests, 1 slows them, 2 may."""

    case: str
    where: str
    symptom: str
    evidence: str
    cause: str
    knob: str
    confidence: float
    severity: int = 1


def weigh(*signs: bool | None) -> float:
    """Confidence from signs: True seen, False seen to be otherwise, None not seen."""
    points = sum(1.0 if sign else 0.5 if sign is None else 0.0 for sign in signs)
    return round(points / len(signs), 2)


def where(replica: ReplicaWatch, engine: EngineWatch) -> str:
    """The engine's name where the server has several."""
    return f"{replica.url} engine {engine.engine}" if len(replica.engines) > 1 else replica.url
