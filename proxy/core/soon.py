"""When a proxy tells the store what changed at it and others wait for: room that came free on a replica, other heads of its queue.

Rule. ``TOGETHER_S`` after it happened, so that several ends of one step are told together, but ``GAP_S`` after the last time at the
earliest: a change that comes alone is told at once, and many are told as often as a step ends. What nobody can be waiting for is told
whenever the store is told anything of that name.

Fails: what could not be told when it was due (a call of its kind is under way) is put off by ``GAP_S``.
"""

from collections.abc import Collection
from math import inf

TOGETHER_S = 0.002
GAP_S = 0.02
HEADS = ""  # the name of the queue's heads: no replica has it


class Soon:
    """What is to be told soon, by name. Times are the proxy's own clock's."""

    def __init__(self) -> None:
        self._due_s: dict[str, float] = {}
        self._told_s: dict[str, float] = {}

    def __contains__(self, name: str) -> bool:
        """Whether it changed and was not told since."""
        return name in self._due_s

    def __repr__(self) -> str:
        """What is to be told, for people and tests."""
        return f"<Soon {sorted(self._due_s)}>"

    def changed(self, name: str, now_s: float, *, wanted: bool = True) -> float:
        """It is to be told. Returns when; infinite: it may wait, being not ``wanted``."""
        due_s = self._due_s.get(name, inf)
        if due_s == inf:
            due_s = self._due_s[name] = max(now_s + TOGETHER_S, self._told_s.get(name, -inf) + GAP_S) if wanted else inf
        return due_s

    def told(self, name: str, now_s: float) -> None:
        """It is being told."""
        self._due_s.pop(name, None)
        self._told_s[name] = now_s

    def due(self, name: str, now_s: float) -> bool:
        """Whether it is to be told now."""
        return self._due_s.get(name, inf) <= now_s

    def put_off(self, now_s: float, names: Collection[str]) -> float:
        """Try again later what is still due, and forget what is not among ``names``. Returns when the next is due; infinite: nothing is."""
        for name, due_s in list(self._due_s.items()):
            if name not in names and name != HEADS:
                del self._due_s[name]
            elif due_s <= now_s:
                self._due_s[name] = now_s + GAP_S
        if len(self._told_s) > len(names) + 1:
            self._told_s = {name: told_s for name, told_s in self._told_s.items() if name in names or name == HEADS}
        return min(self._due_s.values(), default=inf)
