"""The step time of recorded engines, from what their requests took.

A request that streamed from its first token at ``a`` to its end at ``b`` with ``n`` tokens took part in ``n - 1`` steps, which lasted on
average, with D sequences decoding and K tokens held beside it and P tokens of prompts computed meanwhile,

    (b - a) ÷ (n - 1) = base + prefill · P ÷ (n - 1) + decode · D + kv · K        all four not negative

Least squares over all requests, each weighted by its steps. kvgate's own model (``core.step_time``) is fitted to windows of its scrapes,
whose ends are uncertain by a step or two; a request's ends are known. One per cent of the step time is one per cent of the throughput,
and under overload several per cent of those who are refused.

Prompt blocks that the recording has shown before count as cached. Fails: where the cache had lost them, where the engine preempts much,
and where answers do not stream: fewer than ``REQUESTS_MIN`` that do are not enough to tell.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from proxy.core.grid import FloatArray
from proxy.sim.step_time import StepTimeModel
from proxy.wire.recording import RecordedRequest

REQUESTS_MIN = 50
STEPS_MIN = 8  # shorter ones are all ends
BASE_S_MIN = 1e-4
SCALE = np.array([1.0, 1e3, 1e2, 1e5])  # makes each term about one


@dataclass(frozen=True, slots=True)
class _Decode:
    """One request's part in its engine's steps."""

    begin_s: float
    end_s: float
    steps: int
    prompt_tokens: int
    prefill_tokens: int  # what of them was not cached


class _Beside:
    """What one engine did until any moment at which a request began or ended to decode: integrals over seconds."""

    def __init__(self, decodes: Sequence[_Decode]) -> None:
        begins = np.array([one.begin_s for one in decodes])
        ends = np.array([one.end_s for one in decodes])
        steps = np.array([float(one.steps) for one in decodes])
        prompts = np.array([float(one.prompt_tokens) for one in decodes])
        rates = steps / (ends - begins)
        order = np.argsort(times := np.concatenate((begins, ends)), kind="stable")
        self._times = times[order]
        gaps_s = np.diff(self._times, prepend=self._times[0])

        def running(begun: FloatArray, ended: FloatArray) -> FloatArray:
            """The sum of those under way from each moment on."""
            return np.cumsum(np.concatenate((begun, -ended))[order])

        def before(values: FloatArray) -> FloatArray:
            return np.concatenate(([0.0], values[:-1]))

        growth = running(rates, rates)
        held = running(prompts, prompts + steps) + np.cumsum(before(growth) * gaps_s)
        sequences = running(np.ones_like(begins), np.ones_like(begins))
        self._sequences = np.cumsum(before(sequences) * gaps_s)
        self._held = np.cumsum(before(held) * gaps_s + before(growth) * gaps_s**2 / 2.0)
        prefills = sorted((one.begin_s, one.prefill_tokens) for one in decodes)
        self._prefilled_s = np.array([at_s for at_s, _ in prefills])
        self._prefilled = np.concatenate(([0.0], np.cumsum([float(tokens) for _, tokens in prefills])))

    def terms(self, one: _Decode) -> FloatArray:
        """Mean of a step of one request: 1, prefill tokens, sequences, KV tokens."""
        begin, end = np.searchsorted(self._times, (one.begin_s, one.end_s))
        length_s = one.end_s - one.begin_s
        first, last = np.searchsorted(self._prefilled_s, (one.begin_s, one.end_s), side="right")
        return np.array([
            1.0, (self._prefilled[last] - self._prefilled[first]) / one.steps,
            (self._sequences[end] - self._sequences[begin]) / length_s, (self._held[end] - self._held[begin]) / length_s,
        ])  # fmt: skip


def fitted_step_time(rows: Iterable[RecordedRequest]) -> StepTimeModel | None:
    """Seconds of a step, by what ``rows`` took; None where they are too few."""
    terms, steps_s, weights = [], [], []
    for decodes in _by_engine(rows).values():
        beside = _Beside(decodes)
        for one in decodes:
            terms.append(beside.terms(one))
            steps_s.append((one.end_s - one.begin_s) / one.steps)
            weights.append(float(one.steps))
    if len(terms) < REQUESTS_MIN:
        return None
    weight = np.sqrt(np.array(weights))
    base_s, *others = _not_negative(np.array(terms) / SCALE * weight[:, None], np.array(steps_s) * weight) / SCALE
    return StepTimeModel(max(float(base_s), BASE_S_MIN), *map(float, others))


def _not_negative(equations: FloatArray, wanted: FloatArray) -> FloatArray:
    """Least squares, without the terms that would be negative: the most negative one goes first."""
    used = list(range(equations.shape[1]))
    while True:
        found = np.linalg.lstsq(equations[:, used], wanted, rcond=None)[0]
        if not used or found.min() >= 0.0:
            break
        del used[int(found.argmin())]
    solution = np.zeros(equations.shape[1])
    solution[used] = found
    return solution


def _by_engine(rows: Iterable[RecordedRequest]) -> dict[str, list[_Decode]]:
    found: dict[str, list[_Decode]] = {}
    shown: dict[str, set[int]] = {}
    for row in sorted(rows, key=_placed_s):
        if row.replica is None or row.ttft_seen_s is None or row.total_s is None:
            continue
        blocks = shown.setdefault(row.replica, set())
        cached = next((index for index, block in enumerate(row.block_hashes) if block not in blocks), len(row.block_hashes))
        blocks.update(row.block_hashes)
        if row.copies == 1 and row.output_tokens > STEPS_MIN and row.total_s > row.ttft_seen_s:
            found.setdefault(row.replica, []).append(
                _Decode(
                    row.arrival_s + row.ttft_seen_s, row.arrival_s + row.total_s, row.output_tokens - 1, row.prompt_tokens,
                    max(1, row.prompt_tokens - cached * row.block_size),
                )
            )  # fmt: skip
    return found


def _placed_s(row: RecordedRequest) -> float:
    return row.arrival_s + (row.queue_wait_s or 0.0)
