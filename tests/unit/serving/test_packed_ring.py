"""Records in a ring of segments: the last ones as they were, in memory that stays as it is."""

from collections import deque
from random import Random

import pytest

from proxy.serving.packed_ring import PackedRing


@pytest.mark.parametrize(("kept_max", "segment_bytes", "longest"), [(10, 100, 30), (100, 64, 200), (7, 1000, 50), (1, 8, 20)])
def test_the_last_are_told_as_they_were(kept_max: int, segment_bytes: int, longest: int) -> None:
    rng = Random(kept_max)
    ring, told = PackedRing(kept_max, segment_bytes), deque[bytes](maxlen=kept_max)
    assert ring.latest(3) == []
    for _ in range(20 * kept_max + 50):
        one = rng.randbytes(rng.randrange(longest))
        ring.append(one)
        told.append(one)
        assert len(ring) == len(told)
        count = rng.randrange(kept_max + 2)
        assert ring.latest(count) == list(told)[max(0, len(told) - count) :]
    assert ring.latest(10 * kept_max) == list(told)
    assert ring.latest(-1) == []
    copy, then = ring.copy(), list(told)
    for _ in range(3 * kept_max):
        ring.append(b"later")
    assert (len(copy), list(reversed(copy))) == (len(then), then[::-1]), "a copy stays as it was"


def test_it_grows_no_more_once_it_is_full() -> None:
    ring, rng = PackedRing(1000, 4096), Random(1)

    def fill() -> set[int]:
        sizes = set()
        for _ in range(5000):
            ring.append(bytes(rng.randint(400, 800)))
            sizes.add(ring.size_bytes)
        return sizes

    fill()
    segments = {id(segment.data) for segment in ring._segments}
    assert max(fill()) <= 1000 * 800 * 1.2
    assert len({id(segment.data) for segment in ring._segments} & segments) >= 0.9 * len(segments), "written over, not taken anew"


def test_room_that_long_records_took_is_given_back() -> None:
    ring = PackedRing(10, 100)
    for _ in range(10):
        ring.append(bytes(5000))
    assert ring.size_bytes > 50_000
    for _ in range(200):
        ring.append(bytes(10))
    assert ring.size_bytes <= 400
