"""The replicas' records as one proxy knows them: whose turn a scrape is, and where the step clock stands."""

from dataclasses import replace

from proxy.core.records_known import RecordsKnown
from tests.support.shared_rows import record

LEASE_S = 1.0
OURS = record(holder="a", published_s=10.0, steps=100.0, steps_per_s=20.0)


def test_a_replica_without_a_record_is_anybodys_to_scrape() -> None:
    known = RecordsKnown()
    assert known.to_scrape("r0", 10.0, LEASE_S)
    assert (known.number("r0"), known.steps("r0", 10.0)) == (0, 0.0)


def test_another_s_record_is_left_to_it_for_a_scrape_lease() -> None:
    known = RecordsKnown()
    assert known.adopted(replace(OURS, holder="b", number=7), "a")
    assert not known.to_scrape("r0", 11.0, LEASE_S)
    assert known.to_scrape("r0", 11.01, LEASE_S)
    assert (known.number("r0"), known.steps("r0", 10.5)) == (7, 110.0)


def test_who_publishes_holds_until_the_store_tells_of_another() -> None:
    known = RecordsKnown()
    assert known.published(OURS, held=True), "it has just come to be ours"
    assert not known.published(OURS, held=True)
    assert known.to_scrape("r0", 99.0, LEASE_S)
    assert not known.adopted(OURS, "a"), "our own, told back by the store's number"
    assert known.holds == {"r0"}
    assert known.adopted(replace(OURS, holder="b", published_s=99.0), "a")
    assert known.holds == set()
    assert not known.to_scrape("r0", 99.5, LEASE_S)


def test_who_is_refused_the_record_does_not_hold_it() -> None:
    known = RecordsKnown()
    known.published(OURS, held=True)
    assert not known.published(OURS, held=False)
    assert known.holds == set()
