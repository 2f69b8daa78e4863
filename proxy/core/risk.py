"""How high a sum of demand is read: the one formula that turns a forecast into blocks to keep free.

Formula. With the sums M(t), V(t), C(t) and K(t) of mean, variance, ceiling and common error, the margin z, the bias b and the spread s
of what is not known of the present:

    Q(t) = min( M + z * sqrt(V + K^2 + s^2),  C + s ) + b

It is written once, for one replica and for many at a time, because decisions look at all replicas of a model together. What does not
depend on a candidate is added first (``offsets``), so that it need not be for each.

Fails: as its inputs do (``core.curves``, ``core.reconcile``, ``core.feedback``).
"""

from typing import NamedTuple

import numpy as np

from proxy.core.curves import Curves
from proxy.core.grid import FloatArray


class Risk(NamedTuple):
    """What of a replica enters its quantile: the margin, the spread of what is not known of the present, and the bias, in blocks."""

    z: float
    sigma_blocks: float
    bias_blocks: float

    @property
    def offsets(self) -> FloatArray:
        """What comes on top of a sum of demand before ``level_of`` reads it: b on M, s^2 on V, s + b on C, nothing on K; (4, 1)."""
        sigma, bias = self.sigma_blocks, self.bias_blocks
        return np.array([[bias], [sigma * sigma], [sigma + bias], [0.0]])


def level_of(sums: FloatArray, z: float | FloatArray) -> FloatArray:
    """Q(t) in blocks, (G,) or (R, G), of sums (4, G) or (4, R, G) with their risk's offsets on them; the sums are used up."""
    mean, variance, ceiling, common = sums
    common *= common
    common += variance
    np.abs(common, out=common)  # rounding may leave it a hair below 0
    np.sqrt(common, out=common)
    common *= z
    common += mean
    np.minimum(common, ceiling, out=common)
    level: FloatArray = common
    return level


def quantile_of(total: Curves, risk: Risk) -> FloatArray:
    """Q(t) of one replica's sum of demand, in blocks: shape (G,), or (N, G) for sums of N cases."""
    sums = np.array(total.arrays())
    sums += risk.offsets if sums.ndim == 2 else risk.offsets[:, :, None]
    return level_of(sums, risk.z)


def peak_of(sums: FloatArray, risk: Risk) -> float:
    """The largest Q(t) of one replica's sums (4, G), in blocks, which are used up: one replica in as few operations as can be."""
    sigma = risk.sigma_blocks
    if sigma:
        sums[1] += sigma * sigma
        sums[2] += sigma
    level = level_of(sums, risk.z)
    return float(level[level.argmax()]) + risk.bias_blocks
