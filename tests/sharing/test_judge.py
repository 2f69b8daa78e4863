"""The judge of shared grants itself: it must find what is wrong, and read what Redis tells a monitor."""

import struct

import numpy as np
import pytest

from tests.bench.shared_judge import FIGURES, OFFER_S, Anchored, Judge, JudgedReplica, Terms, WaitingHead, surely_first
from tests.bench.shared_load import jain
from tests.bench.shared_monitor import Monitor, head_key, replica_of, words_of

ENDS = np.array([16.0, 32.0, 64.0])
HIGH, LOW = (-10.0, 0.0, 0.0, 1.0), (0.0, 0.0, 0.0, 1.0)


def demand(blocks: float, *, leases: float = 1.0, anchor: float = 0.0) -> Anchored:
    """So many blocks for ever, certain."""
    figures = [leases, leases, 0.0, 0.0, 0.0, 0.0]
    assert len(figures) == FIGURES
    level = [blocks] * len(ENDS)
    return Anchored(np.array([*figures, *level, *[0.0] * 3, *level, *[0.0] * 3]), anchor)


def judge_of(*, usable: float = 100.0, seats: float | None = None) -> Judge:
    """One replica ``r`` at 10 steps a second."""
    judge = Judge()
    judge.replicas["r"] = JudgedReplica(ENDS, Terms(usable, seats, 2.0, 0.0, 0.0, 0.0, 10.0, 0.0))
    return judge


def waiting(proxy: str, blocks: float, rank: tuple[float, ...] = HIGH, ready_steps: float = 0.0) -> WaitingHead:
    """A head since second 0."""
    return WaitingHead(proxy, "h", rank, demand(blocks), ready_steps, since_s=0.0)


def test_a_grant_that_fits_is_none_of_its_findings_and_one_that_does_not_is() -> None:
    judge = judge_of()
    judge.rewritten("r", "a", demand(60.0))
    judge.granted("r", "b", 1, demand(40.0), LOW, 0.1)
    assert judge.verdict.over == []
    judge.granted("r", "b", 2, demand(5.0), LOW, 0.2)
    (found,) = judge.verdict.over
    assert found.blocks == pytest.approx(5.0)


def test_an_empty_replica_takes_anything() -> None:
    judge = judge_of()
    judge.granted("r", "a", 1, demand(500.0), LOW, 0.1)
    assert judge.verdict.grants_on_empty == 1
    assert judge.verdict.over == []


def test_means_and_variances_are_added_before_the_margin() -> None:
    judge = judge_of()
    known = judge.replicas["r"]
    row = demand(10.0).row.copy()
    row[FIGURES + 3 : FIGURES + 6] = 9.0
    row[FIGURES + 6 : FIGURES + 9] = 1000.0
    known.rows["a"] = known.rows["b"] = Anchored(row, 0.0)
    assert known.peak(known.summed(0.0)) == pytest.approx(20.0 + 2.0 * np.sqrt(18.0))


def test_a_row_is_read_where_the_replica_is_now() -> None:
    known = judge_of().replicas["r"]
    row = demand(0.0).row.copy()
    row[FIGURES : FIGURES + 3] = 0.0, 16.0, 48.0
    assert known.read(Anchored(row, 0.0), 0.8)[FIGURES : FIGURES + 3] == pytest.approx([8.0, 24.0, 48.0])


@pytest.mark.parametrize(
    ("offered_s", "now_s", "passed", "after"), [(None, 1.0, 1, 0), (1.0, 1.0 + OFFER_S / 2, 1, 0), (1.0, 1.0 + OFFER_S * 2, 0, 1)]
)
def test_a_better_head_that_fits_goes_first_until_its_offer_has_passed(
    offered_s: float | None, now_s: float, passed: int, after: int
) -> None:
    judge = judge_of()
    judge.rewritten("r", "a", demand(40.0))
    judge.published("r", waiting("a", 20.0))
    if offered_s is not None:
        judge.offered("r", "a", offered_s)
    judge.granted("r", "b", 1, demand(5.0), LOW, now_s)
    assert (len(judge.verdict.passed_by), judge.verdict.after_offers) == (passed, after)


def test_a_head_goes_first_by_its_deadline_within_a_tenant_and_by_service_beyond_doubt_among_tenants() -> None:
    soon, late, other = (0.0, 9.0, 1.0, 1.0), (0.0, 3.0, 2.0, 1.0), (0.0, 5.0, 0.0, 2.0)
    told = [soon, late, other]
    assert surely_first(soon, late, told)
    assert not surely_first(late, soon, told)
    assert not surely_first(soon, other, told)
    assert not surely_first(other, soon, told), "at virtual time 9 or at 3"
    assert surely_first(late, other, [late, other])


def test_a_head_that_does_not_fit_may_not_be_delayed() -> None:
    judge = judge_of()
    known = judge.replicas["r"]
    ending = demand(90.0).row.copy()
    for curve in range(4):
        ending[FIGURES + 3 * curve + 1 : FIGURES + 3 * curve + 3] = 0.0  # it ends after 16 steps
    known.rows["a"] = Anchored(ending, 0.0)
    judge.published("r", waiting("a", 95.0, ready_steps=32.0))
    judge.granted("r", "b", 1, demand(4.0), LOW, 0.0)
    assert judge.verdict.delayed == []
    judge.granted("r", "b", 2, demand(4.0), LOW, 0.0)
    assert len(judge.verdict.delayed) == 1


def test_what_a_monitor_is_told_is_read_as_it_was_sent() -> None:
    row = struct.pack("<d", 3.0) + b'"\\\r\n\x00\xff '
    line = b'1700000000.5 [0 lua] "HSET" "kvgate:{p}:r:http://x:1:rows" "g7|a b" "' + _escaped(row) + b'"\r\n'
    assert words_of(line) == [b"HSET", b"kvgate:{p}:r:http://x:1:rows", b"g7|a b", row]
    assert replica_of("kvgate:{p}:r:http://x:1:rows") == ("http://x:1", "rows")
    assert replica_of("kvgate:{p}:pool") == ("", "")
    assert head_key(b"3|a|breq|1") == ("a|b", "req|1")


def test_a_grant_on_the_wire_reaches_the_judge_with_its_rank() -> None:
    judge = judge_of(usable=10.0)
    judge.rewritten("r", "a", demand(8.0))
    one = demand(5.0)
    packed = np.concatenate(([one.anchor], one.row)).astype("<f8").tobytes()
    monitor, key = Monitor(0, judge), b"kvgate:{p}:r:r:rows"
    words = [
        b"EVALSHA",
        b"d",
        b"5",
        *[key] * 5,
        b"",
        b"2",
        b"ch",
        b"r",
        b"b",
        b"1",
        b"7",
        packed,
        struct.pack("<dddd", *LOW),
        b"0",
    ]
    monitor.told(b"+1.5 [0 127.0.0.1:9] " + b" ".join(b'"' + _escaped(word) + b'"' for word in words) + b"\r\n")
    monitor.told(b'+1.5 [0 lua] "HSET" "' + key + b'" "g7|b" "' + _escaped(packed) + b'"\r\n')
    assert ("b", 7) in judge.replicas["r"].grants
    assert judge.verdict.over[0].blocks == pytest.approx(3.0)
    monitor.told(b'+1.6 [0 lua] "HDEL" "' + key + b'" "g7|b"\r\n')
    assert judge.replicas["r"].grants == {}


def test_jain_is_one_for_equals_and_one_in_n_for_one_who_has_all() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([9.0, 0.0, 0.0]) == pytest.approx(1 / 3)


def _escaped(data: bytes) -> bytes:
    """As Redis writes an argument to a monitor."""
    plain = {ord('"'): b'\\"', ord("\\"): b"\\\\", 10: b"\\n", 13: b"\\r", 9: b"\\t", 7: b"\\a", 8: b"\\b"}
    return b"".join(plain.get(c, bytes([c]) if 32 <= c < 127 else b"\\x%02x" % c) for c in data)
