"""Our own recordings (``wire.recording``) as a workload, and what they tell beside it.

Natural lengths: only ``stop`` and ``tool_calls`` end a request by itself. One that ended for ``length`` would have gone on: it is played
with a natural length one token beyond its cap, or beyond what was seen where it had none. Where the client left (``abort``) or something
failed (``error``) nobody knows; what was seen is played, at least one token. One that was refused (``shed``) is played with the length of
another of its class, drawn by its line's number.

What was there when the recording began (a negative time of arrival) comes when it got its place, and what waited then just before the
beginning, in its order and with the time it had left: those who had been before them are not in the file, and they would find room.

A recording that kvgate made has a head, with the engines; it is a ``Recording``, which ``sim.replay`` sets against its replay. Of a request
for several sequences only one is played.
"""

from pathlib import Path
from random import Random

import msgspec

from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads.block_names import BlockNames
from proxy.sim.workloads.trace import Trace
from proxy.sim.workloads.trace_text import TraceError, lines_of, name_of
from proxy.wire.recording import RecordedRequest, RecordingEnd, RecordingHead

HEAD, END = '{"recording":', '{"recording_end":'
_row = msgspec.json.Decoder(RecordedRequest).decode
_head = msgspec.json.Decoder(RecordingHead).decode
_end = msgspec.json.Decoder(RecordingEnd).decode


class Recording(Trace):
    """What kvgate wrote down: ``rows`` by request id, its ``head``, and its ``end`` where it came to one."""

    def __init__(
        self, name: str, requests: list[SimRequest], block_size: int, rows: dict[str, RecordedRequest], head: RecordingHead,
        end: RecordingEnd | None,
    ) -> None:  # fmt: skip
        super().__init__(name, requests, block_size)
        self.rows = rows
        self.head = head
        self.end = end
        self.zero_s = -min(one.arrival_s for one in requests)  # its second 0, after the first request played
        self.begins_s = max(0.0, self.zero_s)  # from when on its gate decided
        self.early = frozenset(name for name, row in rows.items() if row.arrival_s < 0.0)  # there when it began


def recording_head(path: Path) -> tuple[RecordingHead, RecordingEnd | None] | None:
    """The first and the last line of what kvgate recorded; None for any other file. Raises TraceError."""
    head = end = None
    for number, line in lines_of(path):
        try:
            if head is None:
                if not line.startswith(HEAD):
                    return None
                head = _head(line)
            elif line.startswith(END):
                end = _end(line)
        except msgspec.DecodeError as error:
            raise TraceError(f"{path}:{number}: {error}") from error
    return None if head is None else (head, end)


def recorded_rows(path: Path) -> dict[str, RecordedRequest]:
    """Its requests by the id under which they are played. Raises TraceError for a line that is none."""
    name = name_of(path)
    rows: dict[str, RecordedRequest] = {}
    for number, line in lines_of(path):
        if line.startswith((HEAD, END)):
            continue
        try:
            row = _row(line)
        except msgspec.DecodeError as error:
            raise TraceError(f"{path}:{number}: {error}") from error
        if row.output_tokens > (row.output_tokens_max or row.output_tokens) * row.copies:
            raise TraceError(
                f"{path}:{number}: output_tokens={row.output_tokens} is more than output_tokens_max={row.output_tokens_max}"
            )
        rows[f"{name}-{number}"] = row
    return rows


def read_recording(path: Path, block_size: int) -> Trace:
    """Read a recording. Raises TraceError for a line that is none."""
    name, found, rows = name_of(path), recording_head(path), recorded_rows(path)
    requests = _requests(rows, block_size)
    return Trace(name, requests, block_size) if found is None else Recording(name, requests, block_size, rows, *found)


def _requests(rows: dict[str, RecordedRequest], block_size: int) -> list[SimRequest]:
    named: dict[int, BlockNames] = {}
    requests = []
    known = _lengths(rows)
    for request_id, row in sorted(rows.items(), key=lambda one: one[1].arrival_s):
        names = named.setdefault(row.block_size, BlockNames(row.block_size, block_size))
        natural = max(1, -(-row.natural_tokens // row.copies))
        if row.finish_reason == "shed" and (alike := known.get(row.traffic_class)):
            natural = Random(request_id).choice(alike)
        arrival_s = row.arrival_s if row.arrival_s >= 0.0 else min(_start_s(row), 0.0)
        requests.append(
            SimRequest(
                request_id, row.prompt_tokens, natural, row.output_tokens_max, arrival_s, row.tenant, row.priority,
                names.of(row.block_hashes, row.prompt_tokens), row.streaming, row.session,
                wait_s_max=row.client_wait_s, traffic_class=row.traffic_class, tools=row.tools, weight=row.weight,
                waited_s=arrival_s - row.arrival_s,
            )
        )  # fmt: skip
    return requests


def _start_s(row: RecordedRequest) -> float:
    """When it got its place, or gave up."""
    waited_s = row.total_s if row.queue_wait_s is None or row.finish_reason == "shed" else row.queue_wait_s
    return row.arrival_s + (waited_s or 0.0)


def _lengths(rows: dict[str, RecordedRequest]) -> dict[str, list[int]]:
    """Natural lengths by class, of those that nobody cut short."""
    found: dict[str, list[int]] = {}
    for row in rows.values():
        if row.finish_reason in {"stop", "tool_calls", "length"}:
            found.setdefault(row.traffic_class, []).append(max(1, row.natural_tokens // row.copies))
    return found
