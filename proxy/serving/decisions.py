"""The decisions of the last requests, for who asks why one waited: the last ``KEPT_MAX`` that ended, and those that are open.

A decision that has ended is kept packed (``wire.decision``, ``serving.packed_ring``), some hundred bytes that the garbage collector need
not look at, and read again only when it is asked for; nothing is indexed, since a search through all of them takes some milliseconds. Ids
are the clients', so one may name several.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from proxy.core.considered import Considered, Looks
from proxy.core.outcome import Refusal
from proxy.ports import Clock
from proxy.ports.record import RequestRecord
from proxy.serving.packed_ring import PackedRing
from proxy.wire.decision import Decision, Looked, Refused

if TYPE_CHECKING:
    from proxy.serving.course import Course

KEPT_MAX = 10_000
WORD_CHARS_MAX = 128  # of what a client chose: the model's name
TEXT_CHARS_MAX = 512

NO_FIELDS: Mapping[str, str] = MappingProxyType({})

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Decision).decode
_NOTHING = Considered()
_NO_LOOKS = Looks((), 0)


class Decisions:
    """One process's. ``ended_total`` counts all that ever ended, so that a reader knows which are new."""

    def __init__(
        self, clock: Clock, mode: Callable[[], str], waiting: Callable[[str], Considered | None],
        listeners: Sequence[Callable[[Decision], None]] = (),
    ) -> None:  # fmt: skip
        self.ended_total = 0
        self._listeners = listeners  # told of each that ends
        self._clock = clock
        self._mode = mode
        self._waiting = waiting  # what was seen for a request of the gate's queue
        self._ended = PackedRing(KEPT_MAX)
        self._open: dict[int, Course] = {}

    def __repr__(self) -> str:
        """How many, for people and tests."""
        return f"<Decisions ended={len(self._ended)} of {self.ended_total} open={len(self._open)}>"

    def began(self, course: "Course") -> None:
        """A request is under way."""
        self._open[id(course)] = course

    def left(self, course: "Course") -> None:
        """It is not any more."""
        self._open.pop(id(course), None)

    def keep(self, record: RequestRecord) -> None:
        """A request ended."""
        one = self._decision(record, "ended", record.considered or _NOTHING)
        self.ended_total += 1
        self._ended.append(_pack(one))
        for tell in self._listeners:
            tell(one)

    # ---- what is asked

    def packed(self) -> PackedRing:
        """Those that ended as they are now, to be read elsewhere with ``unpacked``."""
        return self._ended.copy()

    def since(self, number: int) -> list[Decision]:
        """Those that ended after the first ``number``, as far as they are kept, the oldest first."""
        return [_unpack(one) for one in self._ended.latest(self.ended_total - number)]

    def open(self, last: int, matching: Mapping[str, str] = NO_FIELDS) -> list[Decision]:
        """The newest ``last`` that have not ended and whose ``request_id`` and ``tenant`` are as in ``matching``."""
        request_id, tenant = matching.get("request_id"), matching.get("tenant")
        courses = (
            course
            for course in reversed(self._open.values())
            if request_id in {None, course.request_id} and tenant in {None, course.intake.tenant}
        )
        return [self._of_course(course) for course in islice(courses, last)]

    def _of_course(self, course: "Course") -> Decision:
        record = course.record(self._clock.now_s())
        if record.demand is None:
            return self._decision(record, "reading", _NOTHING)
        waiting = None if course.admission is not None else self._waiting(record.demand.request_id)
        considered = waiting or record.considered or _NOTHING
        return self._decision(record, "running" if course.admission is not None else "waiting", considered)

    def _decision(self, record: RequestRecord, phase: str, considered: Considered) -> Decision:
        demand, clock = record.demand, self._clock
        now_s = clock.now_s()
        ended, held, placed = phase == "ended", considered.held or _NO_LOOKS, considered.placed or _NO_LOOKS
        was_held = considered.ahead is not None
        waited_s = record.queue_wait_s
        if waited_s is None and was_held:
            waited_s = record.total_s
        return Decision(  # positional, since one is made for every request: names cost more than the values
            record.request_id, clock.wall_s() - now_s + record.arrived_s, phase, record.outcome.value if ended else None,
            record.status, record.route, record.model[:WORD_CHARS_MAX], record.traffic_class, record.tenant,
            0 if demand is None else demand.priority, record.streaming, 1 if demand is None else demand.sequences,
            self._mode(), record.replica, record.prompt_tokens, record.count_source, record.prompt_tokens_reported,
            record.output_tokens, None if demand is None else demand.output_tokens_max, record.output_tokens_forecast,
            record.degraded_to, considered.mean_blocks, considered.ceiling_blocks, was_held, considered.ahead,
            considered.held_by, _looked(held), held.others, _looked(placed), placed.others,
            None if record.refusal is None else _refused(record.refusal), record.tried, record.fallback, waited_s,
            record.ttft_s, record.tpot_s, record.total_s, record.own_s, None if record.would is None else record.would.word,
            None if record.would is None else record.would.wait_s, record.finish_reasons, record.failure,
        )  # fmt: skip


def unpacked(packed: bytes) -> Decision:
    """A decision that was kept."""
    return _unpack(packed)


def found_in(packed: PackedRing, matching: Mapping[str, str], last: int) -> list[Decision]:
    """The newest ``last`` of those that were kept whose fields are as in ``matching``. Reads only what holds the words."""
    words = [word.encode() for word in matching.values()]
    holding = (_unpack(one) for one in reversed(packed) if all(word in one for word in words))
    return list(islice((one for one in holding if all(getattr(one, name) == word for name, word in matching.items())), last))


def _looked(looks: Looks) -> tuple[Looked, ...]:
    """As they are: a look has the names and the order of ``Looked``, and is packed like it."""
    return looks.replicas  # type: ignore[return-value]


def _refused(refusal: Refusal) -> Refused:
    return Refused(
        refusal.gate, refusal.message[:TEXT_CHARS_MAX], refusal.measured, refusal.limit, refusal.unit, refusal.policy_key,
        refusal.queue_position, refusal.retry_after_s,
    )  # fmt: skip
