"""What somebody said by hand, for a while: a mode that wins over the policy file, a replica that is to drain.

Decides which word rules. An override has a *subject*: the mode, or the drain of one replica. It is said to one proxy (its *own*) or to all
of them (*shared*, through the store), and it ends by itself. For each subject the word said last rules:

    own, while it lasts, else shared, while it lasts, else the policy file;
    a shared one that is new (another serial than heard before) puts aside the own one of that subject.

A word can also be taken back. Own ones are dropped then; for all proxies a *withdrawal* is said, an override without a word, which puts
aside everybody's own and lets the policy rule. It lasts only as long as it takes everybody to hear it.

Fails: two people who speak to two proxies within one beat of the store are both heard, in the order of the store. A proxy that restarts
forgets its own overrides, never the shared ones. One that was out of touch for longer than a withdrawal lasts keeps its own to its end.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from proxy.core.outcome import Mode

MODE = "mode"
DRAIN = "drain:"
LASTS_S_MIN = 1.0
LASTS_S_MAX = 7 * 86_400.0  # who means longer than a week means the policy file
WITHDRAWAL_S = 60.0  # hundreds of beats: who has not heard by then is out of touch, and its own word ends by itself
TEXT_CHARS_MAX = 200  # of a reason: it stands in the log and in every beat


@dataclass(frozen=True, slots=True)
class Override:
    """One word. ``until_s`` is of the clock of whoever keeps it: the proxy's own, or the store's."""

    subject: str  # MODE, or DRAIN and the replica's name
    word: str | None  # a mode; "drain"; None takes back what was said
    reason: str
    by: str
    until_s: float
    serial: str  # no other has it


def drain_of(replica: str) -> str:
    """The subject of a replica's drain."""
    return DRAIN + replica


class Overrides:
    """What is in force at one proxy."""

    def __init__(self) -> None:
        self._own: dict[str, Override] = {}
        self._shared: dict[str, Override] = {}

    def say(self, own: Override) -> None:
        """Somebody told this proxy."""
        self._own[own.subject] = own

    def take_back(self, subject: str) -> bool:
        """This proxy's own word on the subject is over; False when there was none."""
        return self._own.pop(subject, None) is not None

    def hear(self, shared: Mapping[str, Override]) -> None:
        """All that the store holds, by subject, its times turned into this proxy's."""
        for subject, told in shared.items():
            known = self._shared.get(subject)
            if known is None or known.serial != told.serial:
                self._own.pop(subject, None)
        self._shared = dict(shared)

    def in_force(self, subject: str, now_s: float) -> Override | None:
        """The word that rules; None: the policy does."""
        for said in (self._own.get(subject), self._shared.get(subject)):
            if said is not None and said.until_s > now_s:
                return None if said.word is None else said
        return None

    def shared(self, override: Override) -> bool:
        """Whether it was said to all proxies."""
        told = self._shared.get(override.subject)
        return told is not None and told.serial == override.serial

    def mode(self, policy: Mode, now_s: float) -> Mode:
        """The mode that rules."""
        said = self.in_force(MODE, now_s)
        return policy if said is None or said.word is None else Mode(said.word)

    def drains(self, now_s: float) -> dict[str, Override]:
        """Replicas that are to drain."""
        subjects = {subject for subject in (*self._own, *self._shared) if subject.startswith(DRAIN)}
        found = {subject.removeprefix(DRAIN): self.in_force(subject, now_s) for subject in sorted(subjects)}
        return {replica: said for replica, said in found.items() if said is not None}

    def forget_expired(self, now_s: float) -> list[Override]:
        """Take out what is over; return what ruled until now and was not taken back."""
        over = []
        for said in (self._own, self._shared):
            for subject in [subject for subject, one in said.items() if one.until_s <= now_s]:
                one = said.pop(subject)
                over += [one] if one.word is not None else []
        return over

    def ends_s_next(self) -> float:
        """When the next of them is over; infinite when none is."""
        return min((one.until_s for said in (self._own, self._shared) for one in said.values()), default=float("inf"))
