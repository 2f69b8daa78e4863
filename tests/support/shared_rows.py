"""Builders for what several proxies tell each other: records, rows of requests, reservations; and Q of a row in plain numbers."""

from dataclasses import replace
from math import inf, sqrt
from typing import Any

import numpy as np

from proxy.core.grid import FloatArray
from proxy.core.replica import ReplicaPhase
from proxy.core.shared import LOAD_FIELDS, Head, Load, Rank, Record, ReserveAsk, RewriteAsk, row_of

ENDS: FloatArray = np.array([16.0, 32.0, 64.0, 128.0, 256.0])
RECORD = Record(
    replica="r0",
    holder="p0",
    number=0,
    engine_epoch=1,
    phase=ReplicaPhase.SERVING,
    published_s=0.0,
    steps=0.0,
    steps_per_s=30.0,
    usable_blocks=100,
    sequences_max=None,
    z=2.0,
    sigma_blocks=0.0,
    bias_blocks=0.0,
    burst_until_s=-inf,
    measured_blocks=None,
    running=None,
    waiting=None,
    preemptions_total=0,
)
RANK = Rank(0.0, 1.0, 10.0)


def record(replica: str = "r0", **fields: Any) -> Record:
    """A record of a replica with 100 usable blocks that does 30 steps per second."""
    return replace(RECORD, replica=replica, **fields)


def blocks_row(
    blocks: float, *, until_steps: float = 256.0, alive: float = 1.0, sequences: float = 1.0, ends: FloatArray = ENDS
) -> FloatArray:
    """A request that holds so many blocks until a step, with a probability; certain where that is 1."""
    there = (ends <= until_steps) * float(blocks)
    curves = np.array([there * alive, there * there * alive * (1.0 - alive), there, there * (1.0 - alive) * 0.1])
    return row_of(Load(1.0, sequences, blocks, blocks, sequences / 16.0, 0.0), curves)


def ask(
    number: int = 1,
    blocks: float = 10.0,
    *,
    proxy: str = "p0",
    replica: str = "r0",
    epoch: int = 0,
    anchor: float = 0.0,
    rank: Rank = RANK,
    own_share_blocks: float = 0.0,
    row: FloatArray | None = None,
) -> ReserveAsk:
    """A reservation of one request that holds so many blocks for certain."""
    return ReserveAsk(replica, proxy, epoch, number, blocks_row(blocks) if row is None else row, anchor, rank, own_share_blocks)


def rewriting(
    row: FloatArray | None = None, upto: int = 0, *, proxy: str = "p0", replica: str = "r0", epoch: int = 0, anchor: float = 0.0,
    known: int = 1, record_number: int = 0,
) -> RewriteAsk:  # fmt: skip
    """A rewrite of a proxy's account of a replica."""
    return RewriteAsk(replica, proxy, epoch, upto, row, anchor, record_number, known)


def head(head_id: str = "h", blocks: float = 10.0, *, rank: Rank = RANK, anchor: float = 0.0, ready: float = inf) -> Head:
    """A head that would hold so many blocks for certain."""
    return Head(head_id, rank, blocks_row(blocks), anchor, ready)


def plain_peak(row: FloatArray, one: Record) -> float:
    """The highest Q of a row, from the formula, number by number."""
    points = (len(row) - LOAD_FIELDS) // 4
    values: list[float] = row[LOAD_FIELDS:].tolist()
    mean, variance, ceiling, common = (values[k * points : (k + 1) * points] for k in range(4))
    sigma, bias = one.sigma_blocks, one.bias_blocks
    return max(
        min(m + one.z * sqrt(abs(v + k * k + sigma * sigma)), c + sigma) + bias
        for m, v, c, k in zip(mean, variance, ceiling, common, strict=True)
    )
