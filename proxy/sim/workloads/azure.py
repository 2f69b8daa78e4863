"""Azure LLM inference traces (2023; CC-BY-4.0, Splitwise, ISCA '24): CSV of time, context tokens and generated tokens.

Nobody's cap was recorded and most clients send none, so these requests have none. All are one tenant.
"""

import csv
from datetime import UTC, datetime
from pathlib import Path

from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads.trace import Trace
from proxy.sim.workloads.trace_text import TraceError, lines_of, name_of

COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


def read_azure(path: Path, block_size: int) -> Trace:
    """Read a trace. Raises TraceError for a line that is not one of three columns, whole numbers above 0 and a time."""
    name = name_of(path)
    requests: list[SimRequest] = []
    lines = lines_of(path)
    heading = next(lines, (1, ""))[1]
    if heading.removeprefix("\ufeff").split(",") != COLUMNS:
        raise TraceError(f"{path}:1: got {heading[:80]!r}; the columns of an Azure trace are {','.join(COLUMNS)}")
    for number, line in lines:
        columns = next(csv.reader([line]))
        try:
            stamp, prompt, output = columns
            arrival_s, prompt_tokens, output_tokens = seconds_of(stamp), int(prompt), int(output)
        except ValueError as error:
            raise TraceError(f"{path}:{number}: {error}; a row is {','.join(COLUMNS)}") from error
        if min(prompt_tokens, output_tokens) < 1:
            raise TraceError(
                f"{path}:{number}: {prompt_tokens} context and {output_tokens} generated tokens; both are at least 1"
            )
        requests.append(SimRequest(f"{name}-{len(requests)}", prompt_tokens, output_tokens, None, arrival_s))
    return Trace(name, requests, block_size)


def seconds_of(stamp: str) -> float:
    """Seconds since 1970 of ``2023-11-16 18:17:03.9799600``. The fraction has seven digits, more than datetime reads."""
    whole, _, fraction = stamp.partition(".")
    return datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp() + float(f"0.{fraction or 0}")
