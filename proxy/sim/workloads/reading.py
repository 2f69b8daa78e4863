"""Tells which kind of recording a file is, by its name and its first line, and reads it."""

from pathlib import Path

import msgspec

from proxy.sim.workloads.azure import read_azure
from proxy.sim.workloads.mooncake import read_mooncake
from proxy.sim.workloads.recording import read_recording
from proxy.sim.workloads.servegen import read_servegen
from proxy.sim.workloads.trace_text import TraceError, kind_of, lines_of
from proxy.sim.workloads.workload import Workload


def read_workload(path: Path, seed: int, block_size: int) -> Workload:
    """Read a recording. Raises TraceError for a file of no kind that is known, and for a fault in it."""
    match kind_of(path):
        case ".csv":
            return read_azure(path, block_size)
        case ".json":
            return read_servegen(path, seed)
        case ".jsonl":
            return read_mooncake(path, seed, block_size) if is_mooncake(path) else read_recording(path, block_size)
        case other:
            raise TraceError(
                f"{path}: a {other or 'nameless'} file; there are .csv (Azure), .jsonl (Mooncake or our own) and .json (ServeGen), "
                "plain or packed as .gz or .xz"
            )


def is_mooncake(path: Path) -> bool:
    """Whether the first object has Mooncake's hashes. What is no object is left for a reader to complain about."""
    for _, line in lines_of(path):
        try:
            first = msgspec.json.decode(line)
        except msgspec.DecodeError:
            return False
        return isinstance(first, dict) and "hash_ids" in first
    return False
