"""``kvgate plan``: the flags, what is printed, and how it ends."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import main
from tests.unit.advise.models import LLAMA_3_8B

SEVENTY_B = ["--layers", "80", "--kv-heads", "8", "--head-dim", "128"]
CARD = ["--gpu-memory-gib", "80", "--gpu-memory-utilization", "0.9", "--weights-gib", "36", "--reserve-gib", "6"]


def planned(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict[str, Any]:
    """What ``--json`` says."""
    assert main(["plan", "--json", *argv]) == code
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    return made


def model_folder(path: Path, **fields: Any) -> str:
    (path / "config.json").write_text(json.dumps(LLAMA_3_8B | fields))
    return str(path)


def test_the_worked_examples(capsys: pytest.CaptureFixture[str]) -> None:
    mha = planned(
        capsys,
        *("--layers", "60", "--kv-heads", "32", "--head-dim", "128", "--dtype-bytes", "2", "--tp", "8", "--kv-pool-gib", "30"),
    )
    assert mha["bytes_per_token"] == 122_880
    assert mha["kv_tokens"] == pytest.approx(250_000, rel=0.05)
    assert mha["max_num_seqs"] == 104  # of 2,000 tokens, the default
    assert planned(capsys, *SEVENTY_B, *CARD, "--block-size", "16")["block_bytes"] == 5_242_880
    split = planned(capsys, *SEVENTY_B, *CARD, "--tp", "4")
    assert [reading["kv_blocks"] for reading in split["readings"]] == [7372, 6144, 24_576]
    assert (split["kv_pool_bytes"], split["kv_blocks"], split["kv_tokens"]) == (30 * 2**30, 24_576, 393_216)


def test_people_see_the_picture_the_readings_and_the_lines_to_start_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "/models/seventy b", *SEVENTY_B, *CARD, "--tp", "4"]) == 2  # a folder that is not there
    capsys.readouterr()
    assert main(["plan", *SEVENTY_B, *CARD, "--tp", "4"]) == 0
    out = capsys.readouterr().out
    bar = next(line for line in out.splitlines() if line.startswith("  [")).strip(" []")
    assert [bar.count(sign) for sign in "█▒░·"] == [29, 5, 24, 6]  # 36, 6, 30 and 8 of 80 GiB in 64 characters
    for words in (
        "7,372 blocks",
        "the usual arithmetic",
        "6,144 blocks",
        "as vLLM does",
        "24,576 blocks",
        "what vLLM will print",
    ):
        assert words in out
    assert "vllm serve MODEL \\\n  --tensor-parallel-size 4 \\\n  --gpu-memory-utilization 0.9" in out
    assert 'nvidia.com/gpu: "4"' in out
    assert "mountPath: /dev/shm" in out


def test_the_kubernetes_snippet_is_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    made = planned(capsys, *SEVENTY_B, *CARD, "--tp", "4")
    spec = yaml.safe_load(made["kubernetes"])
    assert spec["containers"][0]["args"][0] == "MODEL"
    assert f"--max-num-seqs={made['max_num_seqs']}" in spec["containers"][0]["args"]
    assert spec["volumes"][0]["name"] == spec["containers"][0]["volumeMounts"][0]["name"]
    assert made["serve"][:3] == ["vllm", "serve", "MODEL"]


def test_a_folder_is_read_and_its_weights_are_weighed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model_folder(tmp_path)
    estimated = planned(capsys, folder, "--gpu-memory-gib", "24")
    assert (estimated["bytes_per_token"], estimated["sequences_full_length"]) == (131_072, estimated["kv_blocks"] // 512)
    with (tmp_path / "model-00001-of-00001.safetensors").open("wb") as weights:
        weights.truncate(8 * 2**30)  # sparse
    weighed = planned(capsys, str(tmp_path / "config.json"), "--gpu-memory-gib", "24", "--tp", "2")
    assert weighed["kv_pool_bytes"] == int(24 * 2**30 * 0.9) - 4 * 2**30
    assert planned(capsys, folder, "--kv-pool-gib", "4", "--dtype-bytes", "1")["serve"][-6:-4] == ["--kv-cache-dtype", "fp8"]


def test_expected_lengths_are_taken_from_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "day.jsonl"
    rows = [{"arrival_s": 0, "prompt_tokens": 700, "output_tokens": 100, "finish_reason": "stop"},
            {"arrival_s": 1, "prompt_tokens": 900, "output_tokens": 300, "finish_reason": "stop"}]  # fmt: skip
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = planned(capsys, *SEVENTY_B, "--kv-pool-gib", "30", "--trace", str(trace))
    assert (made["prompt_tokens"], made["output_tokens"]) == (800, 200)
    assert made["lengths_source"] == f"means of {trace}, 2 requests"
    assert made["sequences"] == 6143 // 63


def test_what_does_not_fit_ends_with_1_and_offers_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*SEVENTY_B, "--gpu-memory-gib", "80", "--weights-gib", "140"]
    assert main(["plan", *argv]) == 1
    out = capsys.readouterr().out
    assert "This does not work:\n  - the weights do not fit" in out
    assert "vllm serve" not in out
    made = planned(capsys, *argv, code=1)
    assert (made["fits"], made["sequences"], len(made["faults"])) == (False, 0, 1)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ([], "give the model's folder, or --layers, --kv-heads, --head-dim"),
        (["--layers", "80"], "--kv-heads, --head-dim must be given too: plain numbers replace config.json only all together"),
        (SEVENTY_B, "give the card's memory (--gpu-memory-gib 80) or the pool (--kv-pool-gib 30)"),
        ([*SEVENTY_B, "--gpu-memory-gib", "80"], "--weights-gib: the model's weights are not known here; give what one card holds of them"),
        ([*SEVENTY_B, *CARD, "--kv-pool-gib", "3"], "--kv-pool-gib is the whole answer to --gpu-memory-gib: give one of them"),
        ([*SEVENTY_B, *CARD, "--trace", "chat", "--prompt-tokens", "3"],
         "--trace tells both lengths: leave --prompt-tokens and --output-tokens out"),
        ([*SEVENTY_B, *CARD, "--tp", "3"],
         "--tp 3: 8 KV heads cannot be split over 3 cards; use one of 1, 2, 4, 8, or a multiple of the last"),
    ],
)  # fmt: skip
def test_what_is_missing_is_told_in_one_line(argv: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *argv]) == 2
    assert capsys.readouterr().err == f"kvgate plan: {line}\n"


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["/no/such/folder", "--kv-pool-gib", "1"], "there is no folder '/no/such/folder'"),
        ([*SEVENTY_B, *CARD, "--trace", "/no/such.csv"], "--trace: "),
    ],
)
def test_a_file_that_is_not_there_is_told(argv: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *argv]) == 2
    assert part in capsys.readouterr().err


def test_a_broken_config_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{")
    assert main(["plan", str(tmp_path), "--kv-pool-gib", "1"]) == 2
    assert "its config.json cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [
        ("--layers", "0", "must be a whole number above 0"),
        ("--layers", "1.5", "must be a whole number above 0"),
        ("--gpu-memory-gib", "inf", "must be a number above 0"),
        ("--reserve-gib", "-1", "must be a number, 0 or more"),
        ("--kv-pool-gib", "x", "must be a number"),
        ("--gpu-memory-utilization", "90", "must be a share of the card, above 0 and at most 1"),
    ],
)
def test_a_value_out_of_its_range_is_told(flag: str, value: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["plan", f"{flag}={value}"])
    assert left.value.code == 2
    assert f'argument {flag}: "{value}": {why}' in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_fault() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "proxy", "plan", *SEVENTY_B, *CARD]
    try:
        ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")
