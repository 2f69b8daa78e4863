"""Mooncake traces (FAST '25; Apache-2.0): JSON lines of time (ms), lengths, and a prefix hash for every 512 prompt tokens.

Stamps of the conversation trace come in steps of 3 s, with many requests at each. Played as they stand, that is a burst every 3 s
which never happened: where stamps are that coarse, each step's requests are spread over it, at times drawn with the seed. No caps and no
tenants were recorded.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec

from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads.block_names import BlockNames
from proxy.sim.workloads.lengths import generator
from proxy.sim.workloads.trace import Trace
from proxy.sim.workloads.trace_text import TraceError, name_of, rows_of

HASH_TOKENS = 512
# Coarse: a second or more between stamps and several requests at each. Finer ones are taken as they are.
STAMP_STEP_S_MIN = 1.0
REQUESTS_PER_STAMP_MIN = 2.0

Tokens = Annotated[int, msgspec.Meta(ge=1)]


class MooncakeRow(msgspec.Struct, frozen=True):
    """One line. Other fields are left alone."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Tokens
    output_length: Tokens
    hash_ids: tuple[int, ...]


def read_mooncake(path: Path, seed: int, block_size: int) -> Trace:
    """Read a trace. Raises TraceError for a line that is none, or whose hashes do not cover its prompt."""
    name = name_of(path)
    rows = []
    for number, row in rows_of(path, MooncakeRow):
        needed = -(-row.input_length // HASH_TOKENS)
        if len(row.hash_ids) != needed:
            raise TraceError(
                f"{path}:{number}: {len(row.hash_ids)} hash_ids; {row.input_length} tokens have {needed} of {HASH_TOKENS}"
            )
        rows.append(row)
    step_s = stamp_step_s([row.timestamp / 1000.0 for row in rows])
    names = BlockNames(HASH_TOKENS, block_size)
    rng = generator(seed, name, "stamps")
    requests = [
        SimRequest(
            f"{name}-{index}", row.input_length, row.output_length, None, row.timestamp / 1000.0 + step_s * rng.random(),
            block_hashes=names.of(row.hash_ids, row.input_length),
        )
        for index, row in enumerate(rows)
    ]  # fmt: skip
    return Trace(name, requests, block_size)


def stamp_step_s(stamps_s: Sequence[float]) -> float:
    """Seconds between coarse stamps, the median; 0 where stamps are fine."""
    distinct = sorted(set(stamps_s))
    if len(distinct) < 2 or len(stamps_s) < REQUESTS_PER_STAMP_MIN * len(distinct):
        return 0.0
    step_s = median(after - before for before, after in pairwise(distinct))
    return step_s if step_s >= STAMP_STEP_S_MIN else 0.0
