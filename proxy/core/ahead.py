"""Room that a proxy takes at the shared store ahead of the requests it is for, so that none of them waits for the store.

Decides whether a request goes without asking the store, and how much room is asked for ahead. What a request adds over time is bounded by
its highest points, which stay the same whenever it comes:

    amounts = (sequences, max M, max V, max C, max K)              of the request's row (``core.shared``)

An *advance* on a replica is such amounts, reserved at the store as a row that is the same at every step, and part of the proxy's row there
from then on. A request whose amounts are all within what is left of the advance is granted here and takes them out of it. So the store's
account holds at every moment at least what its proxies have: Q rises with each of M, V, C and K, and reserving checked their sum. As much
is asked for as came lately,

    wanted = 2 * the greater of the last ``AHEAD_S`` and those before them        Q(wanted) <= ``store.ahead_ratio`` * usable / proxies

once less than half of it is left, in a call of its own which no request waits for.

Regimes. Roomy (``SharedBook.is_roomy``) and busy: next to nobody waits for the store. Roomy, a request now and then: the store is asked,
for an advance would be given back unused. As soon as less than half of the pool is free, or anybody waits for it, advances are given back,
and every request is a call, with its rank. The whole advance goes by the last call: one that the store was not asked about for ``LIVES_S``
is given back too, for it does not say who waits there now.

Fails: a request of another proxy that needs what an advance holds waits until it is given back, ``LIVES_S`` at most; it is one that takes
nearly half of a pool. A spread or bias that grows meanwhile is seen by the gate, not by the advance. The others count the sequences of an
advance as if they ran: forecasts of their steps are that much too long, and foreign traffic seems that much less.
"""

from collections.abc import Hashable
from math import inf, sqrt
from operator import add, ge, gt, le, sub

from proxy.core.grid import FloatArray
from proxy.core.shared import Amounts, Level, Load, curves_of, level_row

AHEAD_S = 0.5
LIVES_S = 1.0
SHUNS_S = 1.0  # after the store refused an advance
LEASES = 1.0  # that an advance counts as: a replica on which one stands is not empty
_NOTHING: Amounts = (0.0,) * 5


def amounts_of(row: FloatArray | Level) -> Amounts:
    """The highest points of one request's row: (sequences, M, V, C, K)."""
    return row.amounts if isinstance(row, Level) else (float(row[1]), *curves_of(row).max(axis=1).tolist())


def row_of_amounts(amounts: Amounts, points: int) -> FloatArray:
    """A row that is ``amounts`` at every step of a grid of so many points."""
    return level_row(Load(leases=LEASES, sequences=amounts[0]), amounts[1:], points)


def level_blocks(amounts: Amounts, z: float) -> float:
    """Blocks that amounts come to at most by themselves: M + z (sqrt V + K)."""
    _, mean, variance, _, common = amounts
    return mean + z * (sqrt(max(0.0, variance)) + common)


def within(amounts: Amounts, blocks_max: float, z: float) -> Amounts:
    """As large a part of ``amounts`` as comes to ``blocks_max``: the share x of it where (M + z K) x + z sqrt V sqrt x is that much."""
    if level_blocks(amounts, z) <= blocks_max:
        return amounts
    _, mean, variance, _, common = amounts
    straight, root = mean + z * common, z * sqrt(max(0.0, variance))
    if straight <= 0.0:
        share = (blocks_max / root) ** 2
    else:
        share = ((sqrt(root * root + 4.0 * straight * blocks_max) - root) / (2.0 * straight)) ** 2
    return tuple(share * amount for amount in amounts)


class Advance:
    """What is taken ahead on one replica. ``life`` tells the engine and the server there from those before. Times are the proxy's own."""

    __slots__ = ("_before", "_seen", "_seen_s", "asked", "left", "life", "number", "shunned_until_s", "until_s")

    def __init__(self, life: Hashable, now_s: float) -> None:
        self.life = life
        self.left = _NOTHING
        self.until_s = -inf  # the advance stands
        self.asked: Amounts | None = None  # by a call under way
        self.number = 0  # of that call
        self.shunned_until_s = -inf
        self._seen, self._before, self._seen_s = _NOTHING, _NOTHING, now_s

    def __repr__(self) -> str:
        """For people and tests."""
        return (
            f"<Advance left={[round(amount, 3) for amount in self.left]} until={self.until_s:.3f} asked={self.asked is not None}>"
        )

    @property
    def stands(self) -> bool:
        """Whether the store counts one."""
        return self.until_s > -inf

    def see(self, amounts: Amounts, now_s: float) -> None:
        """A request of such amounts came."""
        age_s = now_s - self._seen_s
        if age_s >= AHEAD_S:
            self._before = self._seen if age_s < LIVES_S else _NOTHING
            self._seen, self._seen_s = _NOTHING, now_s
        self._seen = tuple(map(add, self._seen, amounts))

    def take(self, amounts: Amounts, now_s: float) -> bool:
        """Grant one request out of it; False: there is not as much left."""
        if now_s >= self.until_s or any(map(gt, amounts, self.left)):
            return False
        self.left = tuple(map(sub, self.left, amounts))
        return True

    def wants(self, amounts: Amounts, blocks_max: float, z: float, now_s: float) -> Amounts | None:
        """What to ask the store for now, after a request of ``amounts``; None for nothing."""
        if self.asked is not None or now_s < self.shunned_until_s:
            return None
        lately = tuple(map(max, self._seen, self._before))
        if all(map(le, lately, amounts)):  # it is the only one: the next may be long in coming
            return None
        wanted = within(tuple(map(add, lately, lately)), blocks_max, z)
        if any(map(gt, amounts, wanted)):
            return None  # not even one like it has room in an advance
        late = now_s >= self.until_s - LIVES_S / 2.0
        if not late and all(map(ge, map(add, self.left, self.left), wanted)):
            return None
        self.left = tuple(map(min, self.left, wanted))
        return tuple(map(sub, wanted, self.left))

    def granted(self, asked_s: float) -> None:
        """The store has reserved what was asked for."""
        assert self.asked is not None
        self.left, self.until_s, self.asked = tuple(map(add, self.left, self.asked)), asked_s + LIVES_S, None

    def refused(self, now_s: float) -> None:
        """The store has not, or nobody knows."""
        self.asked, self.shunned_until_s = None, now_s + SHUNS_S

    def give_back(self) -> None:
        """Nothing is left of it; the store is to be told by writing the row anew."""
        self.left, self.until_s = _NOTHING, -inf
