"""How long outputs are: the probability that a request of a class goes on.

Formula (occurrence over exposure, reference algorithms.md §1.3). On geometric bins of output tokens, ``n[j]`` is how often bin ``j``
was passed (a part of a bin counts as that part) by finished *and by running* requests, ``d[j]`` how many ended by themselves inside
it. Each class leans on its parent with the weight of ``BACKOFF_WEIGHT`` passages, or as many as the parent has from others:

    rate[j] = (d[j] + w * parent_rate[j]) / (n[j] + w)        S(x) = exp(-sum of rates up to x)
    doubt[j] = rate[j] / (n[j] + w)                           variance of rate[j] (Greenwood)

Cancels, errors and ends at ``max_tokens`` are *censored*: they add exposure, never an end. The class learns natural lengths and the
cap cuts the curve, so a dishonest or absent ``max_tokens`` costs nothing once ends were seen.

Regimes. Cold: the prior has no scale, S(x) = (1 + x / PRIOR_TOKENS)^-PRIOR_POWER, and doubts itself. (With one of 512 tokens the first
completions, which are the short ones, made a pool of long outputs preempt 190 in its first 1,000; with one of 8,192 nobody was
preempted and the first hundreds took twice as long.) Learning: running requests already count, so a shift to longer outputs shows
before they finish. Steady: each completion forgets a little of its class (``FORGET_COMPLETIONS``), so forgetting follows traffic and not
time. Shift: when the ends seen and the ends expected drift apart (``core.shift_watch``), most of the class's history is dropped.

Fails: where a class mixes populations that nothing in the request tells apart the forecast is honest but wide. That the hazards rest on
a finite number of ends is an error common to all requests of a class: the standard deviation of ``log S`` between two lengths is the
root of the sum of ``doubt`` between them, and is handed on as such.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from math import exp

import numpy as np
from numpy.typing import NDArray

from proxy.core.demand import Demand
from proxy.core.grid import FloatArray
from proxy.core.length_bins import BINS, EDGE_LIST, EDGES, WIDTHS, bin_of
from proxy.core.length_names import PARENT_PARTS, Key, chain_of, leaf_name
from proxy.core.shift_watch import SHIFT_KEEP, ShiftWatch

BACKOFF_WEIGHT = 20.0
ROOT_WEIGHT = 4.0  # few: the prior is a guess about no model in particular
# The prior has no length of its own: of those that came to x + PRIOR_TOKENS a share of 2^-PRIOR_POWER comes to twice as far. That ends
# fewer than any traffic does where it has got far, whatever its lengths.
PRIOR_POWER = 0.5
PRIOR_TOKENS = 64.0
FORGET_COMPLETIONS = 2000.0  # half-life of about 1,400 completions; what changes sooner is for the watch over shifts
KEEP = 1.0 - 1.0 / FORGET_COMPLETIONS
ENDED_MAX = 1024  # counted at once: some milliseconds, where nobody asks for hazards anew
EXPECTED_MAX = 4096
CLASSES_MAX = 4096  # 1.6 MB of hazards; newcomers beyond it share their parent's class
PRIOR_RATES = PRIOR_POWER * np.log((EDGES[1:] + PRIOR_TOKENS) / (EDGES[:-1] + PRIOR_TOKENS))

ROWS_START = 64
BY_CLASS = ("_ends", "_exposure", "_alive", "_areas", "_lines")  # arrays by class and bin

NOTHING = np.zeros((0, 0))

Running = tuple[int | NDArray[np.intp], float | FloatArray]  # class rows and tokens out so far of requests under way


class SurvivalModel:
    """Survival of output length for every class seen. Numbers in, numbers out; no clock.

    Classes are *rows* of parallel arrays, parents before children. Intercept + slope * x is a class's cumulative hazard at ``x``
    tokens in each bin, and likewise for its doubt.
    """

    def __init__(self) -> None:
        self._rows: dict[Key, int] = {(): 0}
        self._chains: dict[Key, tuple[int, ...]] = {}  # by what names the leaf: rows from the root on
        self._parents: list[int] = [-1]
        self._depths: list[int] = [0]
        self._ends_total: list[float] = [0.0]
        self._watch = ShiftWatch()
        self._ended: list[
            tuple[tuple[int, ...], float, bool]
        ] = []  # not counted yet: rows of the chain, tokens, by itself or not
        self._ends: FloatArray = np.zeros((ROWS_START, BINS))
        self._exposure: FloatArray = np.zeros((ROWS_START, BINS))
        self._lines: FloatArray = np.zeros((ROWS_START, 4, BINS))  # slopes of hazard and doubt, then their intercepts
        self._asked: Demand | None = None  # the last demand and its chain: a decision asks for one several times
        self._answer: tuple[int, ...] = ()
        self._alive: FloatArray = np.zeros((ROWS_START, BINS))  # S at each bin's start
        self._areas: FloatArray = np.zeros((ROWS_START, BINS))  # its integral up to there
        self._expected: dict[tuple[int, int], float] = {}  # mean lengths by class and cap, asked for since the hazards were made
        self.version = 0  # of the hazards: they change only in ``rebuild``
        self.shifts_total = 0
        self.completions_total = 0
        self.rebuild(())

    def __repr__(self) -> str:
        """Counts for people and tests."""
        return f"<SurvivalModel classes={len(self._rows)} completions={self.completions_total} shifts={self.shifts_total}>"

    def leaf(self, demand: Demand) -> int:
        """Row of the demand's class, made on first sight. Rows stay valid for the model's life."""
        return self._chain(demand)[-1]

    def _chain(self, demand: Demand) -> tuple[int, ...]:
        """Rows of the demand's classes from the root on, made where missing and while there is room."""
        if demand is self._asked:
            return self._answer
        name = leaf_name(demand)
        self._asked, self._answer = demand, self._chains.get(name) or self._made_chain(name)
        return self._answer

    def _made_chain(self, name: Key) -> tuple[int, ...]:
        chain: list[int] = []
        for key in chain_of(name):
            row = self._rows.get(key)
            if row is None:
                if len(self._rows) >= CLASSES_MAX:
                    return tuple(chain)  # not remembered: keys without end may come
                row = self._new_row(key, chain[-1])
            chain.append(row)
        self._chains[name] = tuple(chain)
        return tuple(chain)

    def _new_row(self, key: Key, parent: int) -> int:
        row = self._rows[key] = len(self._rows)
        self._parents.append(parent)
        self._depths.append(self._depths[parent] + 1)
        self._ends_total.append(0.0)
        self._watch.new_row()
        if row == len(self._ends):
            for name in BY_CLASS:
                array = getattr(self, name)
                setattr(self, name, np.concatenate((array, np.zeros_like(array))))
        for array in (self._alive, self._areas, self._lines):
            array[row] = array[parent]
        return row

    def learn(self, demand: Demand, tokens: float, *, natural: bool) -> None:
        """Take in one finished output of ``tokens`` tokens; ``natural`` is False for every censored end."""
        self._learn(self._chain(demand), tokens, natural=natural)

    def learn_of(self, name: Key, tokens: float, *, natural: bool) -> None:
        """As ``learn``, of a request that somebody else saw end, by its ``leaf_name``."""
        self._learn(self._chains.get(name) or self._made_chain(name), tokens, natural=natural)

    def _learn(self, chain: tuple[int, ...], tokens: float, *, natural: bool) -> None:
        self.completions_total += 1
        self._ended.append((chain, tokens, natural))
        if len(self._ended) >= ENDED_MAX:
            self._take_in()

    def _take_in(self) -> None:
        """Count those that ended since the hazards were made: at once, since no hazard changes before the next are."""
        ended, self._ended = self._ended, []
        if not ended:
            return
        tokens, natural = np.array([one[1] for one in ended]), [one[2] for one in ended]
        of_row: dict[int, list[int]] = {}
        for index, (chain, _, _) in enumerate(ended):
            for row in chain:
                of_row.setdefault(row, []).append(index)
        for row, indices in of_row.items():
            own, ends = tokens[indices], self._ends_total[row]
            expected = self.hazard_at(np.full(len(own), row), own).tolist()
            by_itself, drifted, counted = [natural[index] for index in indices], None, 0
            while counted < len(own):
                drifted, ends = self._watch.first_drift(row, expected[counted:], by_itself[counted:], ends, KEEP)
                until = len(own) if drifted is None else counted + drifted + 1
                self._count(row, own[counted:until], by_itself[counted:until])
                counted = until
                if drifted is not None:
                    self._ends[row] *= SHIFT_KEEP
                    self._exposure[row] *= SHIFT_KEEP
                    ends *= SHIFT_KEEP
                    self.shifts_total += 1
            self._ends_total[row] = ends

    def _count(self, row: int, tokens: FloatArray, natural: list[bool]) -> None:
        """Ends of one class in their order, each of which forgets a little of those before it."""
        last = bin_of(tokens)
        weights = KEEP ** np.arange(len(tokens) - 1, -1, -1)
        part = np.minimum((tokens - EDGES[last]) / WIDTHS[last], 1.0)
        ended = np.bincount(last, weights=weights, minlength=BINS)
        kept = KEEP ** len(tokens)
        self._ends[row] *= kept
        self._ends[row] += np.bincount(last, weights=weights * natural, minlength=BINS)
        self._exposure[row] *= kept
        self._exposure[row] += np.cumsum(ended[::-1])[::-1] - ended + np.bincount(last, weights=weights * part, minlength=BINS)

    def classes(self) -> list[tuple[Key, FloatArray, FloatArray]]:
        """What every class rests on, parents first: its name, and by bin how many ended and how often it was passed."""
        self._take_in()
        return [(name, self._ends[row], self._exposure[row]) for name, row in self._rows.items()]

    def resume(self, name: Key, ends: FloatArray, exposure: FloatArray) -> None:
        """Know this of a class too; parents come first. Hazards follow with the next ``rebuild``."""
        self._take_in()
        row = self._rows.get(name)
        if row is None:
            row = self._new_row(name, self._rows[name[: PARENT_PARTS[len(name)]]])
        self._ends[row, : len(ends)] += ends
        self._exposure[row, : len(exposure)] += exposure
        self._ends_total[row] += float(ends.sum())

    def rebuild(self, running: Iterable[Running]) -> None:
        """Recompute every class's cumulative hazard, ``running`` being (leaf rows, tokens out so far) of requests under way."""
        rates, doubts = self.rates(running)
        self._draw(0, rates)
        self._draw(1, doubts)
        alive = self._alive[: len(rates)] = np.exp(np.cumsum(-rates, axis=1) + rates)
        self._areas[: len(rates), 1:] = np.cumsum((alive[:, :-1] + alive[:, 1:]) * 0.5 * WIDTHS[:-1], axis=1)
        self._expected.clear()
        self.version += 1

    def rates(self, running: Iterable[Running]) -> tuple[FloatArray, FloatArray]:
        """Hazard of every class in each bin and the variance of its error: two (classes, BINS) arrays."""
        self._take_in()
        count = len(self._rows)
        live = self._live(list(running), count)
        parents, depths = np.asarray(self._parents), np.asarray(self._depths)
        levels = [np.flatnonzero(depths == depth) for depth in range(int(depths.max()) + 1)]
        for level in reversed(levels[1:]):  # each class's running requests count in all above it
            np.add.at(live, parents[level], live[level])
        ends, exposure = self._ends[:count], self._exposure[:count] + live * self._watch.weights(live)
        rates, rests_on = np.empty((count, BINS)), np.empty((count, BINS))
        rests_on[0] = exposure[0] + ROOT_WEIGHT
        rates[0] = (ends[0] + ROOT_WEIGHT * PRIOR_RATES) / rests_on[0]
        for level in levels[1:]:
            above = parents[level]
            # What a parent knows from others; what it knows from the class itself is no second opinion.
            weight = np.clip(rests_on[above] - exposure[level], ROOT_WEIGHT, BACKOFF_WEIGHT)
            rests_on[level] = exposure[level] + weight
            rates[level] = (ends[level] + weight * rates[above]) / rests_on[level]
        self._watch.under_way((live * rates).sum(axis=1))
        return rates, rates / rests_on

    def _draw(self, line: int, steps: FloatArray) -> None:
        """Straight lines within each bin through the cumulative sums of ``steps``: hazards are line 0, doubts line 1."""
        slope, intercept = self._lines[: len(steps), line], self._lines[: len(steps), line + 2]
        slope[:] = steps / WIDTHS
        intercept[:] = np.cumsum(steps, axis=1) - steps - slope * EDGES[:-1]

    @staticmethod
    def _live(running: list[Running], count: int) -> FloatArray:
        """How often each bin of each leaf was passed by requests under way: (count, BINS)."""
        if not running:
            return np.zeros((count, BINS))
        rows = np.concatenate([np.atleast_1d(np.asarray(one[0], dtype=np.intp)) for one in running])
        tokens = np.concatenate([np.atleast_1d(np.asarray(one[1], dtype=np.float64)) for one in running])
        bins = bin_of(tokens)
        part = np.minimum((tokens - EDGES[bins]) / WIDTHS[bins], 1.0)
        at = rows * BINS + bins
        inside = np.bincount(at, weights=part, minlength=count * BINS).reshape(count, BINS)
        reached = np.bincount(at, minlength=count * BINS).reshape(count, BINS).astype(np.float64)
        beyond = np.cumsum(reached[:, ::-1], axis=1)[:, ::-1] - reached
        live: FloatArray = inside + beyond
        return live

    def hazard_at(self, rows: NDArray[np.intp], tokens: FloatArray) -> FloatArray:
        """Cumulative hazard of class ``rows`` at ``tokens``; same shapes, or ``rows`` broadcasting against ``tokens``."""
        return self._line_at(0, bin_of(tokens) + rows * (4 * BINS), np.minimum(tokens, EDGES[-1]))

    def cumulative_at(self, rows: NDArray[np.intp], tokens: FloatArray, *, doubts: bool = True) -> tuple[FloatArray, FloatArray]:
        """``hazard_at`` of class ``rows`` (N,) at ``tokens`` (N, K), and the cumulative variance of its error, if asked for."""
        index, tokens = bin_of(tokens) + (rows * (4 * BINS))[:, None], np.minimum(tokens, EDGES[-1])
        return self._line_at(0, index, tokens), self._line_at(1, index, tokens) if doubts else NOTHING

    def _line_at(self, line: int, index: NDArray[np.intp], tokens: FloatArray) -> FloatArray:
        """Slope * tokens + intercept; ``index`` is that of class and bin in the first line's slopes."""
        flat = self._lines.reshape(-1)
        result: FloatArray = flat[line * BINS :].take(index)
        result *= tokens
        result += flat[(line + 2) * BINS :].take(index)
        return result

    def hazard_and_doubt_in(self, rows: list[int], tokens: FloatArray, places: NDArray[np.intp]) -> FloatArray:
        """Both of ``cumulative_at``, never below 0, of classes at ``tokens`` with their ``places_of``: (2, rows, tokens)."""
        taken = self._lines[rows].reshape(len(rows), 4 * BINS).take(places.reshape(-1), axis=1)
        lines: FloatArray = taken.reshape(len(rows), 4, len(tokens)).swapaxes(0, 1)
        both = lines[:2]
        both *= tokens
        both += lines[2:]
        return np.maximum(both, 0.0, out=both)

    def hazard(self, row: int, tokens: float) -> float:
        """Cumulative hazard of one class at ``tokens``."""
        tokens = min(tokens, EDGE_LIST[-1])
        index = min(bisect_right(EDGE_LIST, tokens) - 1, BINS - 1)
        return float(self._lines[row, 2, index] + self._lines[row, 0, index] * tokens)

    def output_tokens_expected(self, demand: Demand, cap: int) -> float:
        """Mean output length of a new request, cut at ``cap`` tokens: the integral of S, by trapezoids over the bins."""
        key = self.leaf(demand), cap
        found = self._expected.get(key)
        if found is None:
            if len(self._expected) >= EXPECTED_MAX:
                self._expected.clear()
            found = self._expected[key] = self._tokens_expected(*key)
        return found

    def _tokens_expected(self, row: int, cap: int) -> float:
        index = min(bisect_left(EDGE_LIST, cap) - 1, BINS - 1)  # the last edge below the cap
        if index < 0:
            return 0.0
        rest = (float(self._alive[row, index]) + exp(-self.hazard(row, float(cap)))) * 0.5 * (cap - EDGE_LIST[index])
        return float(self._areas[row, index]) + rest
