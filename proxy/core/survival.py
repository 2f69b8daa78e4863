"""How long outputs are: the probability that a request of a class goes on.

Formula (occurrence over exposure, reference algorithms.md §1.3). On geometric bins of output tokens, ``n[j]`` is how often bin ``j``
was passed (a part of a bin counts as that part) by finished *and by running* requests, ``d[j]`` how many ended by themselves inside
it. Each class leans on its parent with the weight of ``BACKOFF_WEIGHT`` passages:

    rate[j] = (d[j] + w * parent_rate[j]) / (n[j] + w)        S(x) = exp(-sum of rates up to x)

Cancels, errors and ends at ``max_tokens`` are *censored*: they add exposure, never an end. The class learns natural lengths and the
cap cuts the curve, so a dishonest or absent ``max_tokens`` costs nothing once ends were seen.

Regimes. Cold: the prior says that almost everybody goes on to the cap. Learning: running requests already count, so a shift to longer
outputs shows before they finish. Steady: each completion forgets a little of its class (``FORGET_COMPLETIONS``), so forgetting follows
traffic and not time. Shift: when the ends seen and the ends expected drift apart by more than ``SHIFT_SIGMA`` standard deviations, most
of the class's history is dropped.

Fails: where a class mixes populations that nothing in the request tells apart the forecast is honest but wide; the relative error of
a class that saw ``D`` ends is about ``1 / sqrt(D)``, common to all its requests, and is handed on as such.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from proxy.core.demand import Demand
from proxy.core.grid import FloatArray

BACKOFF_WEIGHT = 20.0
ROOT_WEIGHT = 4.0  # few: the prior is a guess about no model in particular
PRIOR_TOKENS_MEAN = 512.0  # longer than most answers; until an end was seen the caps rule anyway (``error_ratio``)
FORGET_COMPLETIONS = 700.0  # half-life of about 500 completions
SHIFT_SIGMA = 4.0
SHIFT_EXPECTED_MIN = 10.0
SHIFT_ENDS_MIN = 20.0
SHIFT_KEEP = 0.2
EVIDENCE_MIN = 0.01
CLASSES_MAX = 4096  # 1.6 MB of hazards; newcomers beyond it share their parent's class
BIN_TOKENS = 16
BIN_UNTIL_TOKENS = 256
BIN_RATIO = 1.25
BIN_TOKENS_MAX = 1 << 20

Key = tuple[str | int | bool, ...]


def bin_edges() -> FloatArray:
    """Edges of the length bins in output tokens, the first 0."""
    edges: list[float] = [float(x) for x in range(0, BIN_UNTIL_TOKENS + 1, BIN_TOKENS)]
    while edges[-1] < BIN_TOKENS_MAX:
        edges.append(float(np.ceil(edges[-1] * BIN_RATIO)))
    return np.asarray(edges)


EDGES = bin_edges()
WIDTHS = np.diff(EDGES)
BINS = len(WIDTHS)
PRIOR_RATES = WIDTHS / PRIOR_TOKENS_MEAN


def bucket(tokens: int | None) -> int:
    """Powers of four: lengths within a factor of four share a class. None (no cap) is its own bucket."""
    return -1 if tokens is None else (max(tokens, 1).bit_length() + 1) // 2


def class_chain(demand: Demand) -> tuple[Key, ...]:
    """The classes a demand belongs to, from the root to the leaf."""
    kind = demand.length_class
    model: Key = (kind.model,)
    group: Key = (*model, kind.tenant, kind.tools)
    prompt: Key = (*group, bucket(demand.prompt_tokens_longest))
    return ((), model, group, prompt, (*prompt, bucket(demand.output_tokens_max)))


class _Table:
    """Counts of one class. ``row`` is its line in the model's matrix of cumulative hazards."""

    __slots__ = ("ends", "ends_total", "expected", "exposure", "parent", "row", "surplus")

    def __init__(self, parent: "_Table | None", row: int) -> None:
        self.parent = parent
        self.row = row
        self.ends = np.zeros(BINS)
        self.exposure = np.zeros(BINS)
        self.ends_total = 0.0
        self.surplus = 0.0  # ends seen minus ends expected since the last shift
        self.expected = 0.0

    def evidence(self) -> float:
        """Ends that speak for this class, its parents' capped at the back-off weight."""
        own = self.ends_total
        return own if self.parent is None else own + min(BACKOFF_WEIGHT, self.parent.evidence())


class SurvivalModel:
    """Survival of output length for every class seen. Numbers in, numbers out; no clock."""

    def __init__(self) -> None:
        self._tables: dict[Key, _Table] = {(): _Table(None, 0)}
        self._hazard: FloatArray = np.zeros((1, BINS + 1))
        self.version = 0  # of the hazards: they change only in ``rebuild``
        self.shifts_total = 0
        self.completions_total = 0
        self.rebuild(())

    def __repr__(self) -> str:
        """Counts for people and tests."""
        return f"<SurvivalModel classes={len(self._tables)} completions={self.completions_total} shifts={self.shifts_total}>"

    def leaf(self, demand: Demand) -> int:
        """Row of the demand's class, made on first sight. Rows stay valid for the model's life."""
        return self._chain(demand)[-1].row

    def _chain(self, demand: Demand) -> list[_Table]:
        """Tables of the demand's classes from the root on, made where missing and while there is room."""
        chain: list[_Table] = []
        for key in class_chain(demand):
            table = self._tables.get(key)
            if table is None:
                if len(self._tables) >= CLASSES_MAX:
                    break
                table = self._tables[key] = _Table(chain[-1], len(self._tables))
                self._hazard = np.vstack((self._hazard, self._hazard[chain[-1].row]))
            chain.append(table)
        return chain

    def learn(self, demand: Demand, tokens: float, *, natural: bool) -> None:
        """Take in one finished output of ``tokens`` tokens; ``natural`` is False for every censored end."""
        self.completions_total += 1
        passed = np.clip((tokens - EDGES[:-1]) / WIDTHS, 0.0, 1.0)
        last = min(int(np.searchsorted(EDGES, tokens, side="right")) - 1, BINS - 1)
        keep = 1.0 - 1.0 / FORGET_COMPLETIONS
        for table in self._chain(demand):
            expected = float(self.hazard_at(np.asarray([table.row]), np.asarray([tokens]))[0])
            table.ends *= keep
            table.exposure *= keep
            table.ends_total *= keep
            table.exposure += passed
            if natural:
                table.ends[last] += 1.0
                table.ends_total += 1.0
            self._watch_for_shift(table, expected, natural=natural)

    def _watch_for_shift(self, table: _Table, expected: float, *, natural: bool) -> None:
        """Ends minus compensator is a martingale while the class keeps its law; a drift says it does not."""
        if table.ends_total < SHIFT_ENDS_MIN:
            return  # still learning: what it is compared with is the prior, which everything differs from
        table.surplus += (1.0 if natural else 0.0) - expected
        table.expected += expected
        if table.expected < SHIFT_EXPECTED_MIN:
            return
        # The expectation itself rests on a finite number of ends, which adds its own relative error of 1 / sqrt(ends).
        sigma = float(np.sqrt(table.expected + table.expected**2 / table.ends_total))
        if abs(table.surplus) > SHIFT_SIGMA * sigma:
            table.ends *= SHIFT_KEEP
            table.exposure *= SHIFT_KEEP
            table.ends_total *= SHIFT_KEEP
            self.shifts_total += 1
            table.surplus = table.expected = 0.0
        elif table.expected > FORGET_COMPLETIONS:
            table.surplus *= 0.5
            table.expected *= 0.5

    def rebuild(self, running: Iterable[tuple[int, float]]) -> None:
        """Recompute every class's cumulative hazard, ``running`` being (leaf row, tokens out so far) of requests under way."""
        live = np.zeros((len(self._tables), BINS))
        pairs = list(running)
        if pairs:
            rows = np.fromiter((row for row, _ in pairs), dtype=np.intp, count=len(pairs))
            tokens = np.fromiter((tokens for _, tokens in pairs), dtype=np.float64, count=len(pairs))
            np.add.at(live, rows, np.clip((tokens[:, None] - EDGES[:-1]) / WIDTHS, 0.0, 1.0))
        # Tables were added parents first, so going backwards folds each class's running requests into all above it.
        tables = list(self._tables.values())
        for table in reversed(tables):
            if table.parent is not None:
                live[table.parent.row] += live[table.row]
        rates = np.empty((len(tables), BINS))
        for table in tables:
            weight, prior = (ROOT_WEIGHT, PRIOR_RATES) if table.parent is None else (BACKOFF_WEIGHT, rates[table.parent.row])
            rates[table.row] = (table.ends + weight * prior) / (table.exposure + live[table.row] + weight)
        self._hazard[:, 1:] = np.cumsum(rates, axis=1)
        self.version += 1

    def hazard_at(self, rows: NDArray[np.intp], tokens: FloatArray) -> FloatArray:
        """Cumulative hazard of class ``rows`` at ``tokens``; same shapes, or ``rows`` broadcasting against ``tokens``."""
        index = np.minimum(np.searchsorted(EDGES, tokens, side="right") - 1, BINS - 1)
        low = self._hazard[rows, index]
        high = self._hazard[rows, index + 1]
        part: FloatArray = np.minimum((tokens - EDGES[index]) / WIDTHS[index], 1.0)
        result: FloatArray = low + (high - low) * part
        return result

    def error_ratio(self, demand: Demand) -> float:
        """Relative error of the class's forecasts that all its requests share; large (the caps rule) until an end was seen."""
        return float(1.0 / np.sqrt(max(self._chain(demand)[-1].evidence(), EVIDENCE_MIN)))

    def output_tokens_expected(self, demand: Demand, cap: int) -> float:
        """Mean output length of a new request, cut at ``cap`` tokens: the integral of S."""
        row = self.leaf(demand)
        points = np.unique(np.concatenate((EDGES[cap > EDGES], [float(cap)])))
        alive = np.exp(-self.hazard_at(np.full(len(points), row), points))
        return float(np.sum((alive[:-1] + alive[1:]) * 0.5 * np.diff(points)))
