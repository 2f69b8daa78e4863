"""Blocks that several running requests of one replica share.

Decides which of a request's prompt blocks are already held by somebody else *now*. The engine shares a full block between requests with
the same tokens up to its end, never the block that holds the last prompt token: at most ``(P - 1) // block_size`` hits
(reference vllm.md §2.5). A full block that ends with the prompt is not offered to others either: it may be a second copy of one that
is cached, and they would hit the other. A shared block is counted once, for as long as any of its sharers lives: alive with
``1 - prod(1 - a_i)``.

Blocks that are cached but not referenced count as free in the engine, so they give no discount here. Fails: two equal prompts
placed while the first is still being prefilled may be computed twice; the measured bias shows that.
"""

from collections.abc import Iterable


class SharedBlocks:
    """Who references which full prompt block on one replica. Members are row numbers of the ledger."""

    def __init__(self) -> None:
        self._members: dict[int, set[int]] = {}
        self._held: dict[int, list[int]] = {}  # row → hashes it references
        self._shared: set[int] = set()  # hashes with at least two members
        self._runs: list[tuple[int, tuple[int, ...]]] | None = []

    def __len__(self) -> int:
        """Distinct hashed blocks referenced."""
        return len(self._members)

    def __contains__(self, block: int) -> bool:
        """Whether a block is referenced now."""
        return block in self._members

    def hits(self, hashes: tuple[int, ...], hits_max: int) -> int:
        """How many leading blocks are referenced now."""
        count = 0
        for block in hashes[:hits_max]:
            if block not in self._members:
                break
            count += 1
        return count

    def sharers(self, hashes: Iterable[int]) -> dict[frozenset[int], int]:
        """Blocks by the set of rows that reference them."""
        runs: dict[frozenset[int], int] = {}
        for block in hashes:
            members = frozenset(self._members[block])
            runs[members] = runs.get(members, 0) + 1
        return runs

    def add(self, row: int, hashes: tuple[int, ...], hits_max: int) -> None:
        """Row ``row`` starts to hold these blocks, the first ``hits_max`` at most shared with others."""
        assert row not in self._held, row
        if not hashes:
            return
        self._held[row] = list(hashes[:hits_max])
        for block in self._held[row]:
            members = self._members.get(block)
            if members is None:
                self._members[block] = {row}
            else:
                members.add(row)
                self._shared.add(block)
        self._runs = None

    def remove(self, row: int) -> None:
        """Row ``row`` ended."""
        for block in self._held.pop(row, ()):
            members = self._members[block]
            members.discard(row)
            if not members:
                del self._members[block]
            elif len(members) == 1:
                self._shared.discard(block)
        self._runs = None

    def runs(self) -> list[tuple[int, tuple[int, ...]]]:
        """Shared blocks as (number of blocks, rows that share them), each block in one run."""
        if self._runs is None:
            grouped: dict[frozenset[int], int] = {}
            for block in self._shared:
                members = frozenset(self._members[block])
                grouped[members] = grouped.get(members, 0) + 1
            self._runs = [(count, tuple(sorted(members))) for members, count in grouped.items()]
        return self._runs
