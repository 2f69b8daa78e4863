"""Reads a model's ``config.json`` from where the engine says it loaded the model from, if that is readable here.

A folder, or a name in the local Hugging Face cache; nothing is downloaded. Most proxies do not see the engine's disk: that is no fault.
"""

import json

from proxy.adapters.tokenizer_files import TokenizerLoadError, model_folder
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
        if not file.is_file():
            return None
        with file.open("rb") as stream:
            body = stream.read(CONFIG_BYTES_MAX + 1)
        if len(body) > CONFIG_BYTES_MAX:
            return ModelLayers(None, f"it exceeds {CONFIG_BYTES_MAX:,} bytes")
        return read_layers(json.loads(body))
    except (OSError, ValueError) as error:
        return ModelLayers(None, f"it cannot be read: {error}")
