"""Recordings: every kind of file over tiny ones, and what is said of a file with a fault."""

import json
from pathlib import Path

import msgspec
import pytest

from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads import Trace, TraceError, load_workload
from proxy.wire.recording import RecordedRequest
from tests.unit.sim.workloads.trace_files import AZURE_LINES, MOONCAKE_ROWS, RECORDED_ROWS, write, write_rows


def trace(path: Path, *, seed: int = 1, block_size: int = 16) -> Trace:
    workload = load_workload(path, seed, block_size=block_size)
    assert isinstance(workload, Trace)
    return workload


def shared(one: SimRequest, other: SimRequest) -> int:
    return len(set(one.block_hashes) & set(other.block_hashes))


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_azure(tmp_path: Path, suffix: str) -> None:
    workload = trace(write(tmp_path / f"azure.csv{suffix}", "\n".join(AZURE_LINES)))
    assert workload.name == "azure"
    assert [(one.arrival_s, one.prompt_tokens, one.output_tokens, one.output_tokens_max) for one in workload.requests] == [
        (0.0, 4808, 10, None), (pytest.approx(0.5), 3180, 8, None), (pytest.approx(4.0), 110, 27, None)
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mooncake(tmp_path: Path, suffix: str) -> None:
    first, second, third = trace(write_rows(tmp_path / f"m.jsonl{suffix}", MOONCAKE_ROWS)).requests
    assert [one.arrival_s for one in (first, second, third)] == [0.0, 1.0, 5.0]  # one request at each stamp: as they are
    assert [len(one.block_hashes) for one in (first, second, third)] == [1300 // 16, 1030 // 16, 32]
    assert first.block_hashes[:64] == second.block_hashes[:64]
    assert (shared(first, second), shared(first, third), shared(second, third)) == (64, 0, 0)
    assert (first.output_tokens, first.output_tokens_max) == (5, None)


@pytest.mark.parametrize(("block_size", "common"), [(16, 64), (32, 32), (48, 21), (512, 2), (768, 1), (1024, 1), (1040, 0)])
def test_hashes_fit_blocks_of_any_size_and_never_overstate_sharing(tmp_path: Path, block_size: int, common: int) -> None:
    first, second, _ = trace(write_rows(tmp_path / "m.jsonl", MOONCAKE_ROWS), block_size=block_size).requests
    assert [len(one.block_hashes) for one in (first, second)] == [1300 // block_size, 1030 // block_size]
    assert (
        shared(first, second)
        == common
        == len([1 for a, b in zip(first.block_hashes, second.block_hashes, strict=False) if a == b])
    )
    assert len(set(first.block_hashes)) == len(first.block_hashes)


def test_coarse_stamps_are_spread_over_their_step(tmp_path: Path) -> None:
    rows = [MOONCAKE_ROWS[2] | {"timestamp": 3000 * (index // 10)} for index in range(400)]
    path = write_rows(tmp_path / "m.jsonl", rows)
    times = [one.arrival_s for one in trace(path).requests]
    assert len(set(times)) == 400
    assert times[0] == 0.0
    assert 115.0 < times[-1] <= 120.0
    assert [one.arrival_s for one in trace(path).requests] == times
    assert [one.arrival_s for one in trace(path, seed=2).requests] != times


def test_our_own(tmp_path: Path) -> None:
    tool, capped, left, stopped = trace(write_rows(tmp_path / "own.jsonl.xz", RECORDED_ROWS)).requests
    assert [one.arrival_s for one in (tool, capped, left, stopped)] == [0.0, 1.0, 1.5, 2.5]
    assert (stopped.tenant, stopped.priority, stopped.output_tokens, stopped.output_tokens_max) == ("b", 3, 9, None)
    assert (tool.block_hashes, tool.output_tokens) == ((11, 12), 4)
    assert (capped.output_tokens, capped.length, capped.streaming) == (9, 8, False)
    assert (left.output_tokens, left.session) == (1, "s")


def test_our_own_rows_can_be_written_by_a_program() -> None:
    row = RecordedRequest(1.5, 10, 20, "stop", tenant="t")
    assert msgspec.json.decode(msgspec.json.encode(row), type=RecordedRequest) == row


def test_hashes_of_another_block_size_are_fitted(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "own.jsonl", RECORDED_ROWS)
    assert len(trace(path, block_size=8).requests[0].block_hashes) == 4
    assert len(trace(path, block_size=32).requests[0].block_hashes) == 1


def test_a_trace_can_be_played_at_any_rate(tmp_path: Path) -> None:
    workload = trace(write_rows(tmp_path / "m.jsonl", MOONCAKE_ROWS))
    assert workload.rate_per_s == pytest.approx(3 / 5.0)
    assert [one.arrival_s for one in workload.arrivals()] == [0.0, 1.0, 5.0]
    assert [one.arrival_s for one in workload.arrivals(1.2)] == [0.0, pytest.approx(0.5), pytest.approx(2.5)]
    assert [one.arrival_s for one in workload.scaled(0.5).requests] == [0.0, 2.0, 10.0]
    for rate in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="above 0"):
            workload.arrivals(rate)


def test_a_trace_supplies_a_closed_loop_until_it_is_empty(tmp_path: Path) -> None:
    workload = trace(write_rows(tmp_path / "m.jsonl", MOONCAKE_ROWS))
    asked = [workload.next_request(9.0) for _ in range(4)]
    assert [one and (one.request_id, one.arrival_s) for one in asked] == [("m-0", 9.0), ("m-1", 9.0), ("m-2", 9.0), None]
    assert workload.follow_up(workload.requests[0], 1.0) is None


def test_what_fits_a_context_is_kept(tmp_path: Path) -> None:
    workload = trace(write_rows(tmp_path / "m.jsonl", MOONCAKE_ROWS))
    assert [one.request_id for one in workload.fitting(1037).requests] == ["m-1", "m-2"]
    assert [one.request_id for one in workload.fitting(1036).requests] == ["m-2"]
    assert workload.fitting(1036).left_out == 2
    assert workload.fitting(1036).requests[0].arrival_s == 0.0
    with pytest.raises(TraceError, match=r"no request in it \(3 left out\)"):
        workload.fitting(520)


def test_all_at_once_has_no_rate(tmp_path: Path) -> None:
    workload = trace(write_rows(tmp_path / "m.jsonl", MOONCAKE_ROWS[:1]))
    assert workload.rate_per_s is None
    assert len(list(workload.arrivals())) == 1
    with pytest.raises(ValueError, match="no rate"):
        workload.arrivals(1.0)


def test_the_ceiling_of_hits_is_that_of_the_trace(tmp_path: Path) -> None:
    stats = trace(write_rows(tmp_path / "m.jsonl", MOONCAKE_ROWS)).stats
    assert stats.prefix_hit_ratio_max == pytest.approx(1024 / (1300 + 1030 + 512))
    assert (stats.requests, stats.tokens_max) == (3, 1305)


def with_row(rows: list[dict[str, object]], **changes: object) -> str:
    """Three good lines, one of them blank, and a bad one."""
    return "\n".join([json.dumps(rows[0]), "", json.dumps(rows[1]), json.dumps(rows[1] | changes)])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "a,b,c\n1,2,3", r"a\.csv:1: got 'a,b,c'; the columns of an Azure trace are TIMESTAMP"),
        ("a.csv", "", r"a\.csv:1: got ''"),
        ("a.csv", "\n".join([*AZURE_LINES, "2023-11-16 18:17:07.9,110"]), r"a\.csv:5: not enough values"),
        ("a.csv", "\n".join([*AZURE_LINES, "2023-11-16 18:17:07.9,110,many"]), r"a\.csv:5: .*'many'"),
        ("a.csv", "\n".join([*AZURE_LINES, "16/11/2023,110,1"]), r"a\.csv:5: time data"),
        ("a.csv", "\n".join([*AZURE_LINES, "2023-11-16 18:17:07.9,110,0"]), r"a\.csv:5: 110 context and 0 generated"),
        ("a.csv", AZURE_LINES[0], "no request in it"),
        ("m.jsonl", with_row(MOONCAKE_ROWS, input_length=0), r"m\.jsonl:4: Expected `int` >= 1 - at `\$\.input_length`"),
        ("m.jsonl", with_row(MOONCAKE_ROWS, hash_ids=[1]), r"m\.jsonl:4: 1 hash_ids; 1030 tokens have 3 of 512"),
        ("m.jsonl", with_row(MOONCAKE_ROWS, timestamp="soon"), r"m\.jsonl:4: Expected `float`, got `str`"),
        ("o.jsonl", with_row(RECORDED_ROWS, prompt_token=3), r"o\.jsonl:4: .*unknown field `prompt_token`"),
        ("o.jsonl", with_row(RECORDED_ROWS, finish_reason="bored"), r"o\.jsonl:4: Invalid enum value 'bored'"),
        ("o.jsonl", with_row(RECORDED_ROWS, output_tokens=-1), r"o\.jsonl:4: Expected `int` >= 0"),
        ("o.jsonl", with_row(RECORDED_ROWS, output_tokens_max=3), r"o\.jsonl:4: output_tokens=4 is more than output_tokens_max=3"),
        ("o.jsonl", with_row(RECORDED_ROWS) + '\n{"arrival_s": 1', r"o\.jsonl:5: .*truncated"),
        ("o.jsonl", '{"arrival_s": 1.0}', r"o\.jsonl:1: .*missing required field `prompt_tokens`"),
        ("o.jsonl", "[1, 2]", r"o\.jsonl:1: Expected `object`, got `array`"),
        ("o.jsonl", "", "no request in it"),
        ("o.txt", "", r"o\.txt: a \.txt file; there are \.csv \(Azure\)"),
        ("o", "", "a nameless file"),
        ("s.json", '{"clients": {}}', r"s\.json: .*window_s"),
        ("s.json", "{", r"s\.json: .*truncated"),
        ("s.json", '{"window_s": 600, "clients": {}}', r"s\.json: s: no client has both requests and lengths"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_place(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        load_workload(write(tmp_path / name, text), 1)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_damaged_file_is_told_as_such(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"a.csv{suffix}", "\n".join(AZURE_LINES))
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(TraceError, match=r"a\.csv\.[gx]z:[0-9]: cannot be read"):
        load_workload(path, 1)
    path.write_bytes(b"not packed at all")
    with pytest.raises(TraceError, match="cannot be read"):
        load_workload(path, 1)


def test_bytes_that_are_no_text_are_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match=r"a\.csv:1: cannot be read"):
        load_workload(path, 1)


def test_a_recording_has_gaps_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gaps of its own"):
        load_workload(write_rows(tmp_path / "m.jsonl", MOONCAKE_ROWS), 1, gap_cv=2.0)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.csv: no such workload and no such file; the workloads are chat"):
        load_workload(tmp_path / "none.csv", 1)
