"""Writes tiny recordings of every kind."""

import gzip
import json
import lzma
from pathlib import Path

AZURE_LINES = [
    "TIMESTAMP,ContextTokens,GeneratedTokens",
    "2023-11-16 18:17:03.9799600,4808,10",
    "2023-11-16 18:17:04.4799600,3180,8",
    "2023-11-16 18:17:07.9799600,110,27",
]
MOONCAKE_ROWS: list[dict[str, object]] = [
    {"timestamp": 0, "input_length": 1300, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 1000, "input_length": 1030, "output_length": 7, "hash_ids": [0, 1, 3]},
    {"timestamp": 5000, "input_length": 512, "output_length": 9, "hash_ids": [4]},
]
RECORDED_ROWS: list[dict[str, object]] = [
    {"arrival_s": 7.5, "prompt_tokens": 40, "output_tokens": 9, "finish_reason": "stop", "tenant": "b", "priority": 3},
    {
        "arrival_s": 5.0,
        "prompt_tokens": 33,
        "output_tokens": 4,
        "finish_reason": "tool_calls",
        "block_hashes": [11, 12],
        "block_size": 16,
    },
    {
        "arrival_s": 6.0,
        "prompt_tokens": 1,
        "output_tokens": 8,
        "finish_reason": "length",
        "output_tokens_max": 8,
        "streaming": False,
    },
    {"arrival_s": 6.5, "prompt_tokens": 1, "output_tokens": 0, "finish_reason": "abort", "session": "s"},
]
DAY_S = 36_000
SERVEGEN: dict[str, object] = {
    "window_s": 600,
    "source": "invented",
    "clients": {
        "0": {
            "trace": [[DAY_S + 600 * index, 3.0, 1.0, "Gamma", 1.0, 0.33] for index in range(12)],
            "dataset": {"0": {"input_tokens": {"100": 0.5, "300": 0.5}, "output_tokens": {"20": 1.0}}},
        },
        "1": {
            "trace": [[DAY_S, 1.0, 4.0, "Weibull", 1.0, 1.0], [DAY_S + 3600, 1.0, 4.0, "Weibull", 1.0, 1.0]],
            "dataset": {
                "21600": {
                    "text_tokens": {"10": 1.0}, "image_tokens": {"500": 1.0}, "image_count": {"2": 1.0},
                    "audio_count": {"0": 1.0}, "audio_tokens": {"0": 1.0}, "output_tokens": [0.0, 0.0, 1.0],
                },
                "43200": {"text_tokens": {}, "output_tokens": {}},
            },
        },
        "silent": {"trace": [], "dataset": {"0": {"input_tokens": {"1": 1.0}, "output_tokens": {"1": 1.0}}}},
        "unknown": {"trace": [[DAY_S, 5.0, 1.0, "Gamma", 1.0, 0.2]], "dataset": {"0": {"input_tokens": {}, "output_tokens": {}}}},
    },
}  # fmt: skip


def write(path: Path, text: str) -> Path:
    """Write a text, packed as the suffix says."""
    data = text.encode()
    path.write_bytes({".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)(data))
    return path


def write_rows(path: Path, rows: list[dict[str, object]]) -> Path:
    """Write JSON lines."""
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))
