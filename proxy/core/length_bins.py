"""The bins in which lengths of outputs are counted (``core.survival``): every 16 tokens at first, then geometric."""

import numpy as np
from numpy.typing import NDArray

from proxy.core.grid import FloatArray

BIN_TOKENS = 16
BIN_UNTIL_TOKENS = 256
BIN_RATIO = 1.25
BIN_TOKENS_MAX = 1 << 20


def bin_edges() -> FloatArray:
    """Edges of the length bins in output tokens, the first 0."""
    edges: list[float] = [float(x) for x in range(0, BIN_UNTIL_TOKENS + 1, BIN_TOKENS)]
    while edges[-1] < BIN_TOKENS_MAX:
        edges.append(float(np.ceil(edges[-1] * BIN_RATIO)))
    return np.asarray(edges)


EDGES = bin_edges()
WIDTHS = np.diff(EDGES)
BINS = len(WIDTHS)
EDGE_LIST: list[float] = EDGES.tolist()
BIN_OF_TOKEN = (np.searchsorted(EDGES, np.arange(BIN_TOKENS_MAX + 1), side="right") - 1).clip(max=BINS - 1).astype(np.uint8)


def bin_of(tokens: FloatArray) -> NDArray[np.intp]:
    """Bin of each length, by table: a search per cell is what a refresh would otherwise spend its time on."""
    return BIN_OF_TOKEN.take(tokens.astype(np.intp), mode="clip").astype(np.intp)


def places_of(tokens: FloatArray) -> NDArray[np.intp]:
    """Where the four line coefficients of each length stand among those of any class: (4, len(tokens))."""
    return bin_of(tokens) + BINS * np.arange(4)[:, None]
