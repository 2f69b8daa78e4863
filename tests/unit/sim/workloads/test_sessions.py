"""Agent sessions: each turn repeats the one before it, arrives after it, and shares blocks as a prefix cache would see them."""

from itertools import islice, pairwise
from math import isclose
from statistics import mean, median

import pytest

from proxy.sim.engine import Engine
from proxy.sim.engine_requests import EngineRequest, EngineSettings
from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads.lengths import Lognormal
from proxy.sim.workloads.sessions import AGENT, STATS_BLOCK_SIZE, STATS_SEED, Session, SessionLaw, Sessions, known_tokens
from proxy.sim.workloads.workload import length_stats

SMALL = SessionLaw(
    system_tokens=100,
    turns=Lognormal(4, 0.5, 8),
    added=Lognormal(20, 1.0, 64),
    reply=Lognormal(30, 0.8, 64),
    reply_tokens_max=64,
    think_ms=Lognormal(1000, 1.0, 60_000),
    context_tokens=2048,
)


def agent(seed: int = 1, law: SessionLaw = AGENT, block_size: int = 16) -> Sessions:
    return Sessions("agent", law, seed, block_size)


def test_a_turn_repeats_the_one_before_it() -> None:
    for serial in range(50):
        turns = agent().session(serial).turns
        for before, after in pairwise(turns):
            assert after.prompt_tokens > before.prompt_tokens + before.output_tokens
            known = before.block_hashes + before.output_hashes
            assert after.block_hashes[: len(known)] == known
            assert len(known) == (before.prompt_tokens + before.output_tokens) // 16
        assert {turn.session for turn in turns} == {f"agent-{serial}"}


def test_sessions_share_the_system_prompt_and_nothing_else() -> None:
    shared = AGENT.system_tokens // 16
    one, other = (agent().session(serial).turns[-1].block_hashes for serial in (0, 1))
    assert one[:shared] == other[:shared]
    assert not set(one[shared:]) & set(other[shared:])
    assert len(set(one)) == len(one)


def test_the_block_that_ends_the_system_prompt_in_its_middle_is_private() -> None:
    one, other = (agent(law=SMALL, block_size=16).session(serial).turns[-1].block_hashes for serial in (0, 1))
    assert [a == b for a, b in zip(one, other, strict=False)][:7] == [True] * 6 + [False]


def test_other_block_sizes_have_other_hashes() -> None:
    assert not set(agent(block_size=16).session(0).turns[-1].block_hashes) & set(
        agent(block_size=32).session(0).turns[-1].block_hashes
    )


def test_turns_follow_each_other_by_their_think_times() -> None:
    workload = agent(law=SMALL)
    session: Session = workload.session(7)
    assert len(session.think_s) == len(session.turns) - 1
    request, said = session.turns[0], [session.turns[0].request_id]
    for pause_s in session.think_s:
        later = workload.follow_up(request, 100.0)
        assert later is not None
        assert later.arrival_s == 100.0 + pause_s
        said.append(later.request_id)
        request = later
    assert workload.follow_up(request, 100.0) is None
    assert said == [turn.request_id for turn in session.turns]


def test_a_closed_loop_begins_sessions_in_turn() -> None:
    workload = agent()
    starts = [workload.next_request(3.0) for _ in range(3)]
    assert [(one.request_id, one.arrival_s) for one in starts if one] == [
        ("agent-0.0", 3.0),
        ("agent-1.0", 3.0),
        ("agent-2.0", 3.0),
    ]


def test_sessions_begin_at_the_rate_of_requests_over_turns() -> None:
    workload = agent()
    starts = list(islice(workload.arrivals(20.0), 1500))
    sessions_per_s = len(starts) / starts[-1].arrival_s
    assert isclose(sessions_per_s * workload.turns_mean, 20.0, rel_tol=0.08)


def test_lengths_are_those_that_are_written_down() -> None:
    sessions = [agent().session(serial) for serial in range(400)]
    turns = [turn for session in sessions for turn in session.turns]
    assert isclose(median(turn.output_tokens for turn in turns), AGENT.reply.median, rel_tol=0.05)
    assert isclose(median(len(session.turns) for session in sessions), AGENT.turns.median, rel_tol=0.1)
    assert isclose(median(pause for one in sessions for pause in one.think_s), 1.1, rel_tol=0.05)
    assert max(turn.prompt_tokens + AGENT.reply_tokens_max for turn in turns) <= AGENT.context_tokens
    assert isclose(mean(turn.prompt_tokens for turn in turns), agent().stats.prompt_tokens_mean, rel_tol=0.05)


@pytest.mark.parametrize("block_size", [16, 32])
def test_a_later_turn_hits_all_that_came_before_in_a_real_cache(block_size: int) -> None:
    engine = Engine(EngineSettings(num_gpu_blocks=400, block_size=block_size, max_model_len=4096))
    turns = agent(law=SMALL, block_size=block_size).session(3).turns
    assert len(turns) > 1
    known = 0
    for turn in turns:
        engine.add(engine_request(turn))
        before = engine.counters.prefix_hits
        while engine.has_work:
            engine.step()
        hit = engine.counters.prefix_hits - before
        assert hit == min(known, (turn.prompt_tokens - 1) // block_size * block_size)
        # The last token of an output is never fed back, so a block that it ends is not full.
        known = (turn.prompt_tokens + turn.output_tokens - 1) // block_size * block_size


def engine_request(turn: SimRequest) -> EngineRequest:
    hashes = turn.block_hashes + turn.output_hashes
    return EngineRequest(
        turn.request_id,
        turn.prompt_tokens,
        turn.output_tokens,
        turn.output_tokens_max,
        turn.block_hashes,
        hash_block=hashes.__getitem__,
    )


def test_the_weights_are_those_of_the_turns_themselves() -> None:
    """Worked out without hashes; here from them."""
    turns = [
        turn for serial in range(150) for turn in Sessions("sample", AGENT, STATS_SEED, STATS_BLOCK_SIZE).session(serial).turns
    ]
    fresh = length_stats(turns, block_size=STATS_BLOCK_SIZE).prompt_tokens_fresh_mean
    known = sum(known_tokens(AGENT, before, turn) for before, turn in zip([None, *turns], turns, strict=False))
    # The very first session computes the system prompt; the sample takes it as known.
    assert mean(turn.prompt_tokens for turn in turns) - known / len(turns) == pytest.approx(
        fresh - AGENT.system_tokens / len(turns)
    )
    assert agent().stats.prompt_tokens_fresh_mean == pytest.approx(fresh, rel=0.1)
