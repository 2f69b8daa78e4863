"""Our own recordings: JSON lines, one object per request, in any order of time.

    {"arrival_s": 0.25, "prompt_tokens": 812, "output_tokens": 97, "output_tokens_max": 1024, "tenant": "a", "priority": 0,
     "block_hashes": [8121, -77], "block_size": 16, "session": "s1", "streaming": true, "finish_reason": "stop"}

``arrival_s``, ``prompt_tokens``, ``output_tokens`` and ``finish_reason`` must be there. ``block_hashes`` are prefix hashes of
``block_size`` prompt tokens each, as many from the front as are known. A field that is not one of these is an error: a mistyped name
would change a result unseen.

Natural lengths: only ``stop`` and ``tool_calls`` end a request by itself. One that ended for ``length`` would have gone on: it is played
with a natural length one token beyond its cap, or beyond what was seen where it had none. Where the client left (``abort``) or something
failed (``error``) nobody knows; what was seen is played, at least one token.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads.block_names import BlockNames
from proxy.sim.workloads.trace import Trace
from proxy.sim.workloads.trace_text import TraceError, name_of, rows_of

Tokens = Annotated[int, msgspec.Meta(ge=1)]


class RecordedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line. Tokens; ``arrival_s`` in seconds of any clock; higher ``priority`` first."""

    arrival_s: float
    prompt_tokens: Tokens
    output_tokens: Annotated[int, msgspec.Meta(ge=0)]
    finish_reason: Literal["stop", "tool_calls", "length", "abort", "error"]
    output_tokens_max: Tokens | None = None
    tenant: str = "default"
    priority: int = 0
    block_hashes: tuple[int, ...] = ()
    block_size: Tokens = 16
    session: str | None = None
    streaming: bool = True

    @property
    def natural_tokens(self) -> int:
        """Where it would end by itself, as far as can be told."""
        if self.finish_reason == "length":
            return max(self.output_tokens, self.output_tokens_max or 0) + 1
        return max(1, self.output_tokens)


def read_recording(path: Path, block_size: int) -> Trace:
    """Read a recording. Raises TraceError for a line that is none."""
    name = name_of(path)
    named: dict[int, BlockNames] = {}
    requests = []
    for number, row in rows_of(path, RecordedRequest):
        if row.output_tokens > (row.output_tokens_max or row.output_tokens):
            raise TraceError(
                f"{path}:{number}: output_tokens={row.output_tokens} is more than output_tokens_max={row.output_tokens_max}"
            )
        names = named.setdefault(row.block_size, BlockNames(row.block_size, block_size))
        requests.append(
            SimRequest(
                f"{name}-{number}", row.prompt_tokens, row.natural_tokens, row.output_tokens_max, row.arrival_s, row.tenant, row.priority,
                names.of(row.block_hashes, row.prompt_tokens), row.streaming, row.session,
            )
        )  # fmt: skip
    return Trace(name, requests, block_size)
