"""What an engine was started with: from its command line, or from ``/server_info`` of a server in development mode.

Flags may be written as vLLM takes them: ``--name value``, ``--name=value``, with hyphens or underscores; numbers as 8192, 8k (thousands) or
8K (of 1,024).
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)")
_SCALES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_SHORT = {"-tp": "tensor-parallel-size", "-dp": "data-parallel-size", "-pp": "pipeline-parallel-size"}


@dataclass(frozen=True, slots=True)
class ServeFlags:
    """What is known of an engine's settings; None is not told. ``given`` is the whole command line: flags with hyphens, without dashes."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    tensor_parallel: int | None = None
    data_parallel: int | None = None
    chunked_prefill: bool | None = None
    gpu_memory_utilization: float | None = None
    given: Mapping[str, str] = field(default_factory=dict)

    def over(self, other: "ServeFlags") -> "ServeFlags":
        """The same with what only ``other`` tells."""
        missing = {name: getattr(other, name) for name in self.__slots__ if name != "given" and getattr(self, name) is None}
        return replace(self, **missing)


def read_command(words: Sequence[str]) -> ServeFlags:
    """Read a command line such as ``vllm serve MODEL --max-num-seqs 64``. What is no flag, or not a flag's value, is passed over."""
    given: dict[str, str] = {}
    flag: str | None = None
    for word in words:
        if word.startswith("--") or word.partition("=")[0] in _SHORT:
            name, assigned, value = word.partition("=")
            flag = _SHORT.get(name, name[2:].replace("_", "-"))
            given[flag] = value
            flag = None if assigned else flag
        elif flag is not None:
            given[flag] = word
            flag = None
    chunked = True if "enable-chunked-prefill" in given else False if "no-enable-chunked-prefill" in given else None
    return ServeFlags(
        max_num_seqs=_whole(given.get("max-num-seqs")),
        max_num_batched_tokens=_whole(given.get("max-num-batched-tokens")),
        tensor_parallel=_whole(given.get("tensor-parallel-size")),
        data_parallel=_whole(given.get("data-parallel-size")),
        chunked_prefill=chunked,
        gpu_memory_utilization=_number(given.get("gpu-memory-utilization")),
        given=given,
    )


def read_server_info(answer: Any) -> ServeFlags:
    """Read ``/server_info?config_format=json``; all None when ``answer`` is something else."""
    config = answer.get("vllm_config") if isinstance(answer, dict) else None
    sections = config if isinstance(config, dict) else {}

    def value(part: str, key: str) -> Any:
        section = sections.get(part)
        return section.get(key) if isinstance(section, dict) else None

    def whole(part: str, key: str) -> int | None:
        found = value(part, key)
        return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None

    chunked = value("scheduler_config", "enable_chunked_prefill")
    share = value("cache_config", "gpu_memory_utilization")
    return ServeFlags(
        max_num_seqs=whole("scheduler_config", "max_num_seqs"),
        max_num_batched_tokens=whole("scheduler_config", "max_num_batched_tokens"),
        tensor_parallel=whole("parallel_config", "tensor_parallel_size"),
        data_parallel=whole("parallel_config", "data_parallel_size"),
        chunked_prefill=chunked if isinstance(chunked, bool) else None,
        gpu_memory_utilization=share if isinstance(share, float) else None,
    )


def _number(text: str | None) -> float | None:
    match = _NUMBER.fullmatch(text or "")
    return float(match.group(1)) * _SCALES[match.group(2)] if match else None


def _whole(text: str | None) -> int | None:
    found = _number(text)
    return None if found is None or found > sys.maxsize else int(found)
