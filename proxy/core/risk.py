"""How high a sum of demand is read: the one formula that turns a forecast into blocks to keep free.

Formula. With the sums M(t), V(t), C(t) and K(t) of mean, variance, ceiling and common error, the margin z, the bias b and the spread s
of what is not known of the present:

    Q(t) = min( M + z * sqrt(V + K^2 + s^2),  C + s ) + b

It is written once, for one replica and for many at a time, because decisions look at all replicas of a model together.

Fails: as its inputs do (``core.curves``, ``core.reconcile``, ``core.feedback``).
"""

from dataclasses import dataclass

import numpy as np

from proxy.core.curves import Curves
from proxy.core.grid import FloatArray


@dataclass(frozen=True, slots=True)
class Risk:
    """What of a replica enters its quantile: the margin, the spread of what is not known of the present, and the bias, in blocks.

    Numbers, or (R, 1) columns for R replicas at once.
    """

    z: float | FloatArray
    sigma_blocks: float | FloatArray
    bias_blocks: float | FloatArray


def quantile_of(total: Curves, risk: Risk) -> FloatArray:
    """Q(t) of a sum of demand, in blocks: shape (G,), or (R, G) where sums and risk are those of R replicas."""
    sigma = risk.sigma_blocks
    risky: FloatArray = np.maximum(total.variance, 0.0)
    risky += total.common * total.common
    risky += sigma * sigma
    np.sqrt(risky, out=risky)
    risky *= risk.z
    risky += total.mean
    np.minimum(risky, total.ceiling + sigma, out=risky)
    risky += risk.bias_blocks
    return risky
