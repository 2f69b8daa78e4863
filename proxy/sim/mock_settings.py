"""What ``kvgate mock-vllm`` can be told. Flags are named as vLLM's own where vLLM has them."""

import argparse
from dataclasses import dataclass, field

from proxy.sim.engine_requests import EngineSettings, SchedulingPolicy
from proxy.sim.mock_metrics import MetricsVersion
from proxy.sim.step_time import StepTimeModel


@dataclass(frozen=True, slots=True)
class MockSettings:
    """One mock server. ``engine`` describes each of its ``data_parallel_size`` engines; limits of None are off."""

    engine: EngineSettings = field(default_factory=lambda: EngineSettings(num_gpu_blocks=2048))
    step_time: StepTimeModel = field(default_factory=StepTimeModel)
    model: str = "mock"
    data_parallel_size: int = 1
    seed: int = 0
    output_median: float = 200.0
    output_sigma: float = 0.7
    api_key: str | None = None
    log_stats: bool = True
    metrics_version: MetricsVersion = MetricsVersion.V0_32
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    track_load: bool = False

    def __post_init__(self) -> None:
        if self.data_parallel_size < 1:
            raise ValueError(f"data_parallel_size={self.data_parallel_size}: must be at least 1")
        if self.output_median < 1 or self.output_sigma < 0:
            raise ValueError(
                f"output_median={self.output_median} must be at least 1, output_sigma={self.output_sigma} at least 0"
            )
        usable_tokens = (self.engine.num_gpu_blocks - 1) * self.engine.block_size
        if usable_tokens < self.engine.max_model_len:
            raise ValueError(
                f"to serve one request of max_model_len={self.engine.max_model_len} tokens the KV cache needs "
                f"{-(-self.engine.max_model_len // self.engine.block_size) + 1} blocks of {self.engine.block_size}, not "
                f"{self.engine.num_gpu_blocks}: raise --num-gpu-blocks or lower --max-model-len"
            )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``kvgate mock-vllm``."""
    engine = EngineSettings(num_gpu_blocks=2048)
    mock = MockSettings()
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on, 0 for any (default: %(default)s)")
    parser.add_argument("--model", default=mock.model, metavar="NAME", help="served model name (default: %(default)s)")

    def count(flag: str, default: int | None, text: str) -> None:
        parser.add_argument(flag, type=int, default=default, metavar="N", help=f"{text} (default: %(default)s)")

    count("--num-gpu-blocks", engine.num_gpu_blocks, "KV blocks of each engine, one of them the null block")
    count("--block-size", engine.block_size, "tokens in a block")
    count("--max-model-len", engine.max_model_len, "context length in tokens")
    count("--max-num-seqs", engine.max_num_seqs, "sequences in a step")
    count("--max-num-active-seqs", engine.max_num_active_seqs, "sequences admitted to run")
    count("--max-num-batched-tokens", engine.max_num_batched_tokens, "tokens in a step")
    count("--long-prefill-token-threshold", engine.long_prefill_token_threshold, "longest chunk of a prefill, 0 for no limit")
    count("--data-parallel-size", mock.data_parallel_size, "independent engines behind this server, used in turn")
    count("--max-num-queued-reqs", mock.max_num_queued_reqs, "answer 503 beyond this many unfinished requests")
    count("--max-num-queued-tokens", mock.max_num_queued_tokens, "answer 503 beyond this many prompt tokens not yet prefilled")
    count("--seed", mock.seed, "seed of output lengths and texts")
    parser.add_argument("--watermark", type=float, default=engine.watermark, metavar="SHARE",
                        help="share of the blocks kept free when admitting (default: %(default)s)")  # fmt: skip
    parser.add_argument("--scheduling-policy", choices=[str(policy) for policy in SchedulingPolicy], default=str(engine.policy),
                        help="order of waiting requests (default: %(default)s)")  # fmt: skip
    parser.add_argument("--no-enable-prefix-caching", action="store_true", help="switch the prefix cache off")
    parser.add_argument("--speed", type=float, default=1.0, metavar="X", help="how much faster than a GPU it steps (default: 1)")
    parser.add_argument("--output-median", type=float, default=mock.output_median, metavar="TOKENS",
                        help="median of natural output lengths (default: %(default)s)")  # fmt: skip
    parser.add_argument("--output-sigma", type=float, default=mock.output_sigma, metavar="SIGMA",
                        help="their spread: standard deviation of the logarithm (default: %(default)s)")  # fmt: skip
    parser.add_argument("--api-key", default=None, metavar="KEY", help="demand this bearer token on /v1")
    parser.add_argument("--disable-log-stats", action="store_true", help="leave every engine series out of /metrics")
    parser.add_argument("--enable-server-load-tracking", action="store_true", help="count open requests in /load")
    parser.add_argument("--metrics-version", choices=[str(version) for version in MetricsVersion], default=str(mock.metrics_version),
                        help="the vLLM version whose metric names are shown (default: %(default)s)")  # fmt: skip


def settings_from(args: argparse.Namespace) -> MockSettings:
    """Settings from parsed arguments. Raises ValueError with what to change."""
    engine = EngineSettings(
        num_gpu_blocks=args.num_gpu_blocks,
        block_size=args.block_size,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_num_seqs=args.max_num_seqs,
        max_num_active_seqs=args.max_num_active_seqs,
        max_model_len=args.max_model_len,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        watermark=args.watermark,
        prefix_caching=not args.no_enable_prefix_caching,
        policy=SchedulingPolicy(args.scheduling_policy),
    )
    return MockSettings(
        engine=engine,
        step_time=StepTimeModel(speed=args.speed),
        model=args.model,
        data_parallel_size=args.data_parallel_size,
        seed=args.seed,
        output_median=args.output_median,
        output_sigma=args.output_sigma,
        api_key=args.api_key,
        log_stats=not args.disable_log_stats,
        metrics_version=MetricsVersion(args.metrics_version),
        max_num_queued_reqs=args.max_num_queued_reqs,
        max_num_queued_tokens=args.max_num_queued_tokens,
        track_load=args.enable_server_load_tracking,
    )
