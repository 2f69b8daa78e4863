"""Agent sessions: turns that each repeat all before them, after a system prompt that all sessions share.

The prompt of turn k+1 is the prompt of turn k, its reply, and what a tool or the user adds. A turn arrives a think time after the previous
one ended, so sessions need a world that reports ends (``follow_up``); a session whose turn was shed or failed goes no further.
Block hashes stand for content: of the system prompt's full blocks alike in all sessions, of later ones alike within a session.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count

from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads.arrival_times import arrival_times, checked_cv, checked_rate, steady
from proxy.sim.workloads.lengths import Lognormal, generator
from proxy.sim.workloads.workload import LengthStats, length_stats

STATS_SESSIONS = 2_000
STATS_SEED = 0
STATS_BLOCK_SIZE = 16  # vLLM's default
# Sessions are drawn again when a later turn is asked for; those under way fit this many.
SESSIONS_KEPT = 4096


@dataclass(frozen=True, slots=True)
class SessionLaw:
    """How sessions go. ``added`` is what a turn brings besides the reply before it; a session ends before ``context_tokens`` are passed."""

    system_tokens: int
    turns: Lognormal
    added: Lognormal
    reply: Lognormal
    reply_tokens_max: int
    think_ms: Lognormal
    context_tokens: int


# Turns, added tokens and replies are shaped after recorded airline-desk and coding-agent sessions, think times after the latter.
AGENT = SessionLaw(
    system_tokens=4000,
    turns=Lognormal(11, 0.55, 30),
    added=Lognormal(90, 1.3, 4096),
    reply=Lognormal(62, 0.8, 1024),
    reply_tokens_max=1024,
    think_ms=Lognormal(1100, 1.0, 60_000),
    context_tokens=16_384,
)


@dataclass(frozen=True, slots=True)
class Session:
    """Turns in order, and the pause after each but the last (seconds between its end and the next turn's arrival)."""

    turns: tuple[SimRequest, ...]
    think_s: tuple[float, ...]


class Sessions:
    """Clients that each hold one session after another (closed loop) or one session (arrivals)."""

    load_ratio: float | None = None
    rate_per_s: float | None = None

    def __init__(self, name: str, law: SessionLaw, seed: int, block_size: int, gap_cv: float = 1.0) -> None:
        self.name = name
        self.law = law
        self.seed = seed
        self.block_size = block_size
        self.gap_cv = checked_cv(gap_cv)
        self.session = lru_cache(SESSIONS_KEPT)(self._draw)
        self._closed = count()

    @property
    def stats(self) -> LengthStats:
        """Means over the turns of a fixed sample of sessions. The system prompt is in the cache once for all, so not in the token-steps."""
        return sample_stats(self.law)

    @property
    def turns_mean(self) -> float:
        """Turns of a session."""
        return len(sample(self.law)) / STATS_SESSIONS

    def next_request(self, now_s: float) -> SimRequest | None:
        """First turn of the next session."""
        return replace(self.session(next(self._closed)).turns[0], arrival_s=now_s)

    def arrivals(self, rate_per_s: float | None = None) -> Iterator[SimRequest]:
        """First turns, for ever: sessions begin at the rate of requests over the mean count of turns."""
        starts = steady(checked_rate(rate_per_s) / self.turns_mean, self.gap_cv)
        times = arrival_times(starts, generator(self.seed, self.name, "gaps"))
        return (replace(self.session(serial).turns[0], arrival_s=at_s) for serial, at_s in enumerate(times))

    def follow_up(self, request: SimRequest, ended_s: float) -> SimRequest | None:
        """Return the session's next turn, a think time later."""
        serial, _, turn = request.request_id.removeprefix(f"{self.name}-").partition(".")
        session, after = self.session(int(serial)), int(turn)
        if after + 1 == len(session.turns):
            return None
        return replace(session.turns[after + 1], arrival_s=ended_s + session.think_s[after])

    def _draw(self, serial: int) -> Session:
        law, rng = self.law, generator(self.seed, self.name, "session", serial)
        shapes: list[tuple[int, int]] = []
        think_s: list[float] = []
        prompt_tokens = law.system_tokens + law.added.draw(rng)
        for _ in range(law.turns.draw(rng)):
            if shapes and prompt_tokens + law.reply_tokens_max > law.context_tokens:
                break
            reply_tokens = law.reply.draw(rng)
            shapes.append((prompt_tokens, reply_tokens))
            prompt_tokens += reply_tokens + law.added.draw(rng)
            think_s.append(law.think_ms.draw(rng) / 1000.0)
        hashes = self._hashes(serial, sum(shapes[-1]) // self.block_size)
        name = f"{self.name}-{serial}"
        turns = tuple(self._turn(name, index, *shape, hashes) for index, shape in enumerate(shapes))
        return Session(turns, tuple(think_s[:-1]))

    def _turn(self, name: str, index: int, prompt_tokens: int, reply_tokens: int, hashes: tuple[int, ...]) -> SimRequest:
        own, end = prompt_tokens // self.block_size, (prompt_tokens + reply_tokens) // self.block_size
        return SimRequest(
            f"{name}.{index}", prompt_tokens, reply_tokens, self.law.reply_tokens_max,
            block_hashes=hashes[:own], output_hashes=hashes[own:end], session=name,
        )  # fmt: skip

    def _hashes(self, serial: int, blocks: int) -> tuple[int, ...]:
        """Names of the contents from the first token to the end of each block. Integers hash alike in every process."""
        shared = min(blocks, self.law.system_tokens // self.block_size)
        common = tuple(hash((0xA6E27, self.block_size, index)) for index in range(shared))
        return common + tuple(hash((0xA6E27, self.seed, self.block_size, serial, index)) for index in range(shared, blocks))


@lru_cache
def sample(law: SessionLaw) -> tuple[SimRequest, ...]:
    """All turns of a fixed sample of sessions, without hashes: blocks as large as that are never full."""
    fixed = Sessions("sample", law, STATS_SEED, law.context_tokens + 1)
    return tuple(turn for serial in range(STATS_SESSIONS) for turn in fixed.session(serial).turns)


@lru_cache
def sample_stats(law: SessionLaw) -> LengthStats:
    """Weigh the sample. What a cache spares a turn follows from the turn before it, so no hash needs to be made."""
    turns = sample(law)
    spared = sum(known_tokens(law, before, turn) for before, turn in zip((None, *turns), turns, strict=False))
    plain = length_stats(turns, shared_tokens=law.system_tokens)
    return replace(plain, prompt_tokens_fresh_mean=plain.prompt_tokens_mean - spared / len(turns))


def known_tokens(law: SessionLaw, before: SimRequest | None, turn: SimRequest) -> int:
    """Prompt tokens in full blocks that came before: the session's turn before this one, or else the system prompt."""
    same = before is not None and before.session == turn.session
    known = before.prompt_tokens + before.length if before is not None and same else law.system_tokens
    return known // STATS_BLOCK_SIZE * STATS_BLOCK_SIZE
