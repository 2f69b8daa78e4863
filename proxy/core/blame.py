"""Whose fault it is that replicas answer one request with an error: theirs, or the request's.

What makes one engine fail may make any of them fail, and trying it elsewhere takes it to one after another. Of the errors that one request
met (a 5xx that is not the replica's own full queue, or an error event in a stream) there count

    of one replica, however many                  one failure of that replica, at once
    of two and more, none having answered it      none, and what was counted is taken back: the fault is the request's
    of two and more, until another answered it    one failure of each, when that answer begins

so that what no replica answers ejects none of them, however often a client sends it, while replicas that fail what another one serves are
found as fast as before.

Fails: where two are broken and the rest are too busy to take the request, both are found only by what one of them failed alone. A request
that brings engines down is not judged here: who breaks a connection is gone, whatever for, and ``relay.reroutes_max`` bounds how many meet
it. An error that comes after the first byte cannot be tried elsewhere, and counts.
"""

from typing import NamedTuple


class Failure(NamedTuple):
    """An error that a replica answered with. ``sent_s``: when it was asked."""

    replica: str
    why: str
    sent_s: float


class Blame:
    """The errors that one request met, the first of each replica."""

    __slots__ = ("_met",)

    def __init__(self) -> None:
        self._met: list[Failure] = []

    @property
    def undecided(self) -> bool:
        """Whether an answer of another replica would show that those before were at fault."""
        return len(self._met) > 1

    def met(self, failure: Failure) -> tuple[Failure | None, Failure | None]:
        """One more error: the failure that counts, and the one that is taken back."""
        if any(one.replica == failure.replica for one in self._met):
            return None, None
        self._met.append(failure)
        return (failure, None) if len(self._met) == 1 else (None, self._met[0] if len(self._met) == 2 else None)

    def answered(self) -> tuple[Failure, ...]:
        """Another replica answered it: the failures that count after all."""
        met, self._met = self._met, []
        return tuple(met) if len(met) > 1 else ()
