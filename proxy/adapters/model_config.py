"""Reads a model's ``config.json``, and weighs its weight files, where the engine says it loaded them from, if that is readable here.

A folder, or a name in the local Hugging Face cache; nothing is downloaded. Most proxies do not see the engine's disk: that is no fault.
"""

import json
from pathlib import Path

from proxy.adapters.tokenizer_files import TokenizerLoadError, model_folder
from proxy.config.plain_file import read_plain
from proxy.wire.model_layers import ModelLayers, read_layers

CONFIG_BYTES_MAX = 4_000_000  # the largest published ones, with their label tables, stay below one


def read_model_layers(root: str | None) -> ModelLayers | None:
    """The layers of the model at ``root``; None when there is no file to read. Blocking: for a thread."""
    if root is None:
        return None
    try:
        file = model_folder(root) / "config.json"
    except TokenizerLoadError:
        return None
    try:
        return read_layers(read_config(file)) if file.is_file() else None
    except (OSError, ValueError) as error:
        return ModelLayers(None, f"it cannot be read: {error}")


def read_config(file: Path) -> object:
    """A parsed ``config.json``. Raises OSError, and ValueError for what is no JSON or too long."""
    body = read_plain(file, CONFIG_BYTES_MAX + 1).content
    if len(body) > CONFIG_BYTES_MAX:
        raise ValueError(f"it exceeds {CONFIG_BYTES_MAX:,} bytes")
    try:
        return json.loads(body)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def weight_files_bytes(folder: Path) -> int | None:
    """Bytes of a model's weight files; None where there are none. A folder may hold the same weights in several formats."""
    for pattern in ("model*.safetensors", "*.safetensors", "pytorch_model*.bin"):
        sizes = [file.stat().st_size for file in folder.glob(pattern)]
        if sizes:
            return sum(sizes)
    return None
