"""Whether a request goes without its forecast being drawn, because the pool is so roomy that a bound of the forecast decides.

Decides as ``core.placement`` would, by ``core.peak_bound`` instead of the peak itself: where

    1 - bound of the peak / usable  >=  ROOMY_RATIO

for one who arrives while nobody waits, KV cannot be what keeps it out, and nothing else that is asked needs a curve. Its lease is booked
undrawn (``core.lease_sums``): an admission costs a third then, and the end of a short answer too.

Regimes. Roomy: nothing is drawn but at refreshes, everybody at once. As the pool fills, or in a burst that may fill it (``core.pacing``),
curves are drawn for each. One replica of a model: always looked at. Several: only where routing is indifferent, and then the one with the
most room. Tenants with shares, hybrid models, copies: always drawn. Several proxies: the store is told the highest points that each can
have (``Newcomers.highest``); whoever of them still runs when a row is written is drawn then.

Fails: with an unlearned class and no cap the bound is some hundred blocks a request, and a small pool is never roomy.
"""

from collections.abc import Sequence

import numpy as np

from proxy.core.book import Book
from proxy.core.curves import Curves
from proxy.core.pacing import BURST_FILL_RATIO
from proxy.core.replica import ReplicaPhase
from proxy.core.router import Place, Router
from proxy.core.saturation import Binding
from proxy.core.verdict import Verdict
from proxy.core.waiting import Waiting

AGAIN_S = 0.1  # after looking in vain: looking for each would cost more than it saves where pools are never so roomy
ROOMY_RATIO = 0.5  # of the pool is left whatever happens: about there drawing begins to matter to other figures than the fit
_NONE = np.zeros(0)
NOT_DRAWN = Curves(_NONE, _NONE, _NONE, _NONE)  # reading one fails: there is nothing to read


def roomy_place(entry: Waiting, books: Sequence[Book], router: Router, now_s: float, *, burst: bool) -> Place | None:
    """Where ``entry`` goes undrawn; None: it is to be looked at as usual. ``burst``: many arrive at once."""
    demand = entry.demand
    if entry.excluded or entry.avoided or not books:
        return None
    if len(books) == 1:
        book = books[0]
    elif router.is_indifferent(entry, books):
        book = max((one for one in books if one.phase is ReplicaPhase.SERVING), key=_room, default=books[0])
    else:
        return None
    if book.saturation.guard.recovering:
        return None
    least = 1.0 - BURST_FILL_RATIO if burst else ROOMY_RATIO
    if book.room_ratio < least:  # near enough: most that are not roomy need not be worked out
        return None
    found = book.undrawn(demand, now_s)
    if found is None or found[0] < least:
        return None
    headroom, undrawn = found
    cached_tokens = router.warmth.cached_tokens(demand, (book.spec.name,))[0]
    if book.binding(demand, headroom, now_s, cached_tokens) is not Binding.NONE:
        return None
    return book, Verdict(Binding.NONE, headroom, NOT_DRAWN, cached_tokens, undrawn), Binding.NONE


def _room(book: Book) -> float:
    return book.room_ratio
