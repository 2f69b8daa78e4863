"""What the gate believes of a replica beside what its engine says, at the instant of a scrape."""

from dataclasses import dataclass

from proxy.core.book import Book


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ledger beside the engine at one scrape. Blocks; the interval is [placed, placed + unplaced].

    ``prefilling_leases`` counts those that were being prefilled, and those that came or went while the scrape was under way.
    """

    at_s: float
    measured_blocks: float | None
    low_blocks: float
    high_blocks: float
    running: int | None
    waiting: int | None
    leases: int
    prefilling_leases: int


def compared(book: Book, sampled_s: float) -> Comparison:
    """The comparison at a scrape that the book has just taken in."""
    low, high = book.interval_blocks
    leases = book.ledger.leases.values()
    return Comparison(sampled_s, book.measured_blocks, low, high, book.running, book.waiting, len(leases), book.unsettled)
