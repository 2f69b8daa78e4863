"""Flags of ``kvgate mock-vllm``."""

import argparse

import pytest

from proxy.sim.engine_requests import SchedulingPolicy
from proxy.sim.mock_metrics import MetricsVersion
from proxy.sim.mock_server import run
from proxy.sim.mock_settings import MockSettings, add_arguments, settings_from


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_defaults_of_flags_and_settings_agree() -> None:
    assert settings_from(parse()) == MockSettings()


def test_flags_arrive() -> None:
    words = (
        "--model m --num-gpu-blocks 100 --block-size 32 --max-model-len 1000 --max-num-seqs 7 --speed 3 --seed 5 "
        "--watermark 0.1 --api-key k --data-parallel-size 2 --disable-log-stats --metrics-version 0.8.5 "
        "--scheduling-policy priority --no-enable-prefix-caching --max-num-queued-reqs 9 --output-median 50"
    )
    chosen = settings_from(parse(*words.split()))
    assert chosen.model == "m"
    assert chosen.engine.num_gpu_blocks == 100
    assert chosen.engine.max_num_seqs == 7
    assert chosen.engine.policy is SchedulingPolicy.PRIORITY
    assert not chosen.engine.prefix_caching
    assert chosen.step_time.speed == 3
    assert (chosen.log_stats, chosen.metrics_version, chosen.max_num_queued_reqs) == (False, MetricsVersion.V0_8_5, 9)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--num-gpu-blocks 10", "raise --num-gpu-blocks or lower --max-model-len"),
        ("--speed 0", "speed=0"),
        ("--watermark 2", "watermark=2"),
        ("--data-parallel-size 0", "data_parallel_size=0"),
        ("--output-median 0", "output_median=0"),
    ],
)
def test_a_bad_value_is_told_with_what_to_do(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(parse(*words.split())) == 2
    assert said in capsys.readouterr().err
