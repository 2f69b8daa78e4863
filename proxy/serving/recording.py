"""What ``kvgate record`` writes down: finished requests as lines of ``wire.recording``, never their content.

Tenants, sessions and prompt blocks become names by a keyed hash whose salt is made for one recording and thrown away with it: equal ones
stay equal within the file, and nothing tells whose they are. Only ``BLOCKS_MAX`` blocks from the front of a prompt are told.

So that a replay begins as the recording did, the head tells what the gate had learned and what the listed tenants may take; and requests
that were there when it began have lines too, with a negative time of arrival.

Bounded: a reader that is too slow loses lines, which are counted; ``TAPS_MAX`` recordings may be under way at a time.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from math import isfinite
from secrets import token_bytes

import msgspec

from proxy import __version__
from proxy.core.book import Book
from proxy.core.learned import learned_of
from proxy.core.outcome import Outcome
from proxy.core.policy import Policy
from proxy.core.policy_tenants import NOBODY
from proxy.core.policy_version import policy_version
from proxy.ports.record import RequestRecord
from proxy.serving.services import Services
from proxy.wire.recording import RecordedEngine, RecordedRequest, RecordedTenant, RecordingEnd, RecordingHead

BLOCKS_MAX = 512  # 8k tokens: what prompts share stands in front, and each costs a microsecond
LINES_MAX = 20_000  # in memory for a reader that is slow: about 10 MB
TAPS_MAX = 4
STRAGGLERS_S = 60.0  # how long the ends of what arrived in time are waited for
LOOK_S = 0.25

_encode = msgspec.json.Encoder().encode
_ENDS = frozenset({"stop", "tool_calls", "length"})


class Tap:
    """One recording, as lines."""

    def __init__(self, services: Services, lasts_s: float) -> None:
        self._services = services
        self._begun_s = services.clock.now_s()
        self._lasts_s = lasts_s
        self._salt = token_bytes(32)
        self._lines: deque[bytes] = deque()
        self._more = asyncio.Event()
        self._requests = 0
        self._dropped = 0

    async def lines(self) -> AsyncIterator[bytes]:
        """The recording, line by line, until its time is over and what arrived in it has ended."""
        keepers, clock = self._services.keepers, self._services.clock
        before = {name: book.feedback.preemptions_total for name, book in self._books().items()}
        self._services.ended.tell()  # those before it are not its own
        keepers.append(self.keep)
        self._services.uncounted.exact_for += 1  # lengths and blocks are what a recording is for
        try:
            yield _line(self._head())
            while not self._over(clock.now_s() - self._begun_s):
                while self._lines:
                    yield self._lines.popleft()
                self._more.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._more.wait()
            self._services.ended.tell()
            while self._lines:
                yield self._lines.popleft()
            yield _line(RecordingEnd(self._requests, self._engines(before), self._dropped))
        finally:
            keepers.remove(self.keep)
            self._services.uncounted.exact_for -= 1

    def keep(self, record: RequestRecord) -> None:
        """One request ended."""
        arrival_s = record.arrived_s - self._begun_s
        if arrival_s >= self._lasts_s:
            return
        line = self._recorded(record, arrival_s)
        if line is None:
            return
        if len(self._lines) >= LINES_MAX:
            self._dropped += 1
            return
        self._requests += 1
        self._lines.append(_line(line))
        self._more.set()

    def _over(self, passed_s: float) -> bool:
        gate = self._services.dispatcher.gate
        if passed_s < self._lasts_s or self._lines:
            return False
        return passed_s >= self._lasts_s + STRAGGLERS_S or not (gate.open_requests or len(gate.queue))

    # ---- what is told

    def _books(self) -> dict[str, Book]:
        return self._services.dispatcher.gate.fleet.books

    def _engines(self, before: dict[str, int]) -> tuple[RecordedEngine, ...]:
        now_s = self._services.clock.now_s()
        return tuple(
            RecordedEngine(
                name, book.spec.usable_blocks, book.spec.block_size, book.spec.context_tokens_max, book.spec.sequences_max,
                max(0, book.feedback.preemptions_total - before.get(name, 0)), book.saturation.step_time.coefficients,
                None if (age_s := book.sample_age_s(now_s)) is None else round(now_s - age_s - self._begun_s, 6), book.scrapes,
            )
            for name, book in self._books().items() if book.spec.usable_blocks
        )  # fmt: skip

    def _head(self) -> RecordingHead:
        services = self._services
        started = datetime.fromtimestamp(services.clock.wall_s(), UTC).isoformat(timespec="seconds")
        gate = services.dispatcher.gate
        engines = self._engines({name: book.feedback.preemptions_total for name, book in self._books().items()})
        digest = policy_version(gate.policy)
        learned = learned_of(gate, [one.name for one in engines], self._tenant, services.clock.now_s())
        return RecordingHead(
            __version__, gate.mode.value, engines, digest, gate.policy.enforce_ratio, started, learned, self._tenants(gate.policy)
        )

    def _tenants(self, policy: Policy) -> tuple[RecordedTenant, ...]:
        weighted = [policy.tenants.policy_of(name) for name, _ in policy.tenants.weights]
        return tuple(
            RecordedTenant(
                self._tenant(one.name), one.weight, one.priority, one.requests_per_s, one.tokens_per_min, one.burst_s,
                one.kv_share_max, one.kv_share_min,
            )
            for one in (*policy.tenants.listed, *weighted)
        )  # fmt: skip

    def _recorded(self, record: RequestRecord, arrival_s: float) -> RecordedRequest | None:
        """None for what took no KV that anybody counted."""
        demand = record.demand
        prompt_tokens = demand.prompt_tokens if demand is not None else record.prompt_tokens_reported
        if not prompt_tokens:
            return None
        book = self._books().get(record.replica or "")
        cap = demand.output_tokens_max if demand is not None else None
        output = record.output_tokens or 0
        hashes = demand.parts[0].block_hashes if demand is not None and len(demand.parts) == 1 else ()
        return RecordedRequest(
            arrival_s=round(arrival_s, 6),
            prompt_tokens=prompt_tokens,
            output_tokens=output if cap is None else min(output, cap * (demand.sequences if demand is not None else 1)),
            finish_reason=_finish_reason(record),  # type: ignore[arg-type]
            output_tokens_max=cap or None,
            tenant=self._tenant(record.tenant),
            priority=demand.priority if demand is not None else 0,
            block_hashes=tuple(map(self._block, hashes[:BLOCKS_MAX])),
            block_size=self._block_size(book),
            session=self._named(demand.session) if demand is not None and demand.session else None,
            streaming=record.streaming,
            traffic_class=record.traffic_class,
            weight=demand.tenant_weight if demand is not None else 1.0,
            tools=demand is not None and demand.length_class.tools,
            copies=demand.sequences if demand is not None else 1,
            client_wait_s=record.client_wait_s if isfinite(record.client_wait_s) else None,
            outcome=record.outcome.value,
            gate=record.gate,
            held=record.held,
            queue_wait_s=_rounded(record.queue_wait_s),
            ttft_seen_s=_rounded(record.ttft_s),
            total_s=_rounded(record.total_s),
            replica=record.replica,
            would=record.would.word if record.would is not None else None,  # type: ignore[arg-type]
        )

    def _block_size(self, book: Book | None) -> int:
        known = book or next(iter(self._books().values()), None)
        return 16 if known is None else known.spec.block_size

    def _tenant(self, name: str) -> str:
        return name if name == NOBODY else self._named(name)

    def _named(self, text: str) -> str:
        return blake2b(text.encode(), key=self._salt, digest_size=6).hexdigest()

    def _block(self, name: int) -> int:
        return int.from_bytes(blake2b(name.to_bytes(16, signed=True), key=self._salt, digest_size=6).digest())


def _finish_reason(record: RequestRecord) -> str:
    """How it ended, in the words of the recording."""
    if record.outcome is Outcome.COMPLETED:
        named = next((reason for reason in record.finish_reasons if reason in _ENDS), "stop" if record.output_tokens else "error")
        return named if record.status == 200 else "error"
    if record.outcome is Outcome.CANCELLED:
        return "abort" if record.output_tokens else "shed"  # one that left while it waited: nobody knows its length either
    return "error" if record.replica is not None else "shed"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else max(0.0, round(seconds, 6))


def _line(value: msgspec.Struct) -> bytes:
    return _encode(value) + b"\n"
