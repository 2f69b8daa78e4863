"""The replicas' records as one proxy knows them, and which of them are its own to publish.

Decides whose turn a scrape is. Rule: a replica is scraped by the holder of its record, and by anybody once the record is older than a
scrape lease; whoever did publishes, and hears from the store whether it holds the record from then on.

Fails: a proxy that heard late of a record takes it for older than it is, and scrapes once for nothing.
"""

from proxy.core.shared import Record


class RecordsKnown:
    """By replica. ``holds`` are those whose record is ours to publish. Times are the store's."""

    def __init__(self) -> None:
        self.holds: set[str] = set()
        self._last: dict[str, Record] = {}

    def __repr__(self) -> str:
        """Counts for people and tests."""
        return f"<RecordsKnown {len(self._last)} holds={len(self.holds)}>"

    def number(self, replica: str) -> int:
        """Of the last one; 0 where none is known."""
        record = self._last.get(replica)
        return 0 if record is None else record.number

    def steps(self, replica: str, store_s: float) -> float:
        """Where the replica's shared step clock stands."""
        record = self._last.get(replica)
        return 0.0 if record is None else record.steps_at(store_s)

    def to_scrape(self, replica: str, store_s: float, scrape_lease_s: float) -> bool:
        """Whether the replica is ours to scrape."""
        record = self._last.get(replica)
        return record is None or replica in self.holds or store_s - record.published_s > scrape_lease_s

    def published(self, record: Record, *, held: bool) -> bool:
        """We published it, and hold it or not; True when it has just come to be ours."""
        if not held:
            self.holds.discard(record.replica)
            return False
        taken = record.replica not in self.holds
        self.holds.add(record.replica)
        self._last[record.replica] = record
        return taken

    def adopted(self, record: Record, name: str) -> bool:
        """The store told it; True when another than ``name`` holds it."""
        self._last[record.replica] = record
        if record.holder == name:
            return False
        self.holds.discard(record.replica)
        return True
