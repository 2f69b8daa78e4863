"""What a gate has learned that outlasts the requests it learned from: for a recording, so that its replay need not begin cold.

Holds the lengths of outputs by class (ends and exposure by bin, the classes with the most exposure), each engine's margin (delta of z and
the figures of its prior, and the errors of past forecasts), how fast the line moves, the tenants' accounts in the queue, how far forecast
waits were off, and what the tenants have left of their rates. What a few seconds of traffic tell anyway is not in it: step clocks and
times, biases, pacing.

Fails: of more than ``CLASSES_TOLD_MAX`` classes the rarest are left out, and lean on their parents then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from proxy.core.bands import Band
from proxy.core.charging import MeanLength, Scale
from proxy.core.gate import Gate
from proxy.core.grid import FloatArray
from proxy.core.length_bins import BINS
from proxy.core.length_names import Key

CLASSES_TOLD_MAX = 256  # about a kilobyte each
DIGITS = 4


@dataclass(frozen=True, slots=True)
class LearnedLengths:
    """One class: its ``survival.leaf_name`` or the beginning of it; by bin, how many ended and how often it was passed."""

    name: tuple[str | int | bool, ...]
    ends: tuple[float, ...]
    exposure: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LearnedEngine:
    """One engine's margin: ``Feedback.learned`` and ``Calibration.errors``."""

    margin: tuple[float, float, float, float]
    errors: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class LearnedLine:
    """One tenant's account in a band: its virtual time, its meter, and what it is charged by (``TenantLine``)."""

    priority: int
    tenant: str
    virtual: float
    drain: tuple[float, float]
    length: tuple[float, float]
    scale: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Learned:
    """All of it. ``drain``: block-steps and seconds; ``rates_left``: by tenant and kind; ``clocks``: by priority."""

    lengths: tuple[LearnedLengths, ...] = ()
    engines: tuple[LearnedEngine, ...] = ()
    drain: tuple[float, float] = (0.0, 0.0)
    lines: tuple[LearnedLine, ...] = ()
    clocks: dict[int, float] = field(default_factory=dict)
    wait_errors: tuple[float, ...] = ()
    rates_left: dict[str, dict[str, float]] = field(default_factory=dict)


def learned_of(gate: Gate, replicas: Sequence[str], tenant_named: Callable[[str], str], now_s: float) -> Learned:
    """What ``gate`` has learned, the engines in the order of ``replicas``, with tenants as ``tenant_named`` names them and no models."""
    classes = sorted(gate.fleet.model.classes(), key=lambda one: -float(one[2].sum()))[:CLASSES_TOLD_MAX]
    books = [gate.fleet.books[name] for name in replicas]
    return Learned(
        lengths=tuple(
            LearnedLengths(_renamed(name, tenant_named), _short(ends), _short(exposure)) for name, ends, exposure in classes
        ),
        engines=tuple(LearnedEngine(book.feedback.learned, book.calibration.errors) for book in books),
        drain=(gate.queue.drain.work, gate.queue.drain.seconds),
        lines=tuple(
            LearnedLine(
                priority,
                tenant_named(name),
                line.virtual,
                (line.drain.work, line.drain.seconds),
                (line.length.count, line.length.tokens),
                (line.scale.charged, line.scale.forecast),
            )
            for priority, band in gate.queue.bands.items()
            for name, line in band.tenants.items()
        ),
        clocks=gate.queue.clocks(),
        wait_errors=tuple(round(error, DIGITS) for error in gate.shedding.forecast.errors),
        rates_left={tenant_named(tenant): gate.rates.left(tenant, now_s) for tenant in gate.rates.tenants()},
    )


def resume(gate: Gate, learned: Learned, model: str, now_s: float) -> None:
    """Have a new gate know it, all lengths being those of ``model``; engines by the order in which they were found."""
    for one in sorted(learned.lengths, key=lambda one: len(one.name)):
        name: Key = (model, *one.name[1:]) if one.name else ()
        gate.fleet.model.resume(name, _by_bin(one.ends), _by_bin(one.exposure))
    gate.fleet.model.rebuild(())
    for book, engine in zip(gate.fleet.books.values(), learned.engines, strict=False):
        book.calibration.resume(engine.errors)
        book.feedback.calibration = book.calibration.scale
        book.feedback.resume(engine.margin)
    gate.queue.drain.work, gate.queue.drain.seconds = learned.drain
    for told in learned.lines:
        line = gate.queue.bands.setdefault(told.priority, Band()).tenant(told.tenant)
        line.virtual = told.virtual
        line.drain.work, line.drain.seconds = told.drain
        line.length, line.scale = MeanLength(*told.length), Scale(*told.scale)
    for priority, clock in learned.clocks.items():
        gate.queue.bands.setdefault(priority, Band()).clock = clock
    if learned.wait_errors:
        gate.shedding.forecast.resume(learned.wait_errors)
    for tenant, left in learned.rates_left.items():
        gate.rates.resume(tenant, left, now_s)


def _renamed(name: Key, tenant_named: Callable[[str], str]) -> Key:
    """The class without its model, and with its tenant's other name."""
    if not name:
        return ()
    return ("",) if len(name) < 2 else ("", tenant_named(str(name[1])), *name[2:])


def _short(values: FloatArray) -> tuple[float, ...]:
    """Rounded, without the zeros at the end."""
    return tuple(np.trim_zeros(values.round(DIGITS), "b").tolist())


def _by_bin(values: tuple[float, ...]) -> FloatArray:
    found = np.zeros(BINS)
    found[: len(values)] = values[:BINS]
    return found
