"""What an engine was started with, however it is written."""

from proxy.wire.serve_command import ServeFlags, read_command, read_server_info


def test_flags_as_vllm_takes_them() -> None:
    words = ["vllm", "serve", "model", "--max-num-seqs", "64", "--max_num_batched_tokens=8K", "-tp", "4"]
    words += ["--no-enable-chunked-prefill", "--swap-space", "4"]
    flags = read_command(words)
    assert (flags.max_num_seqs, flags.max_num_batched_tokens, flags.tensor_parallel) == (64, 8192, 4)
    assert flags.chunked_prefill is False
    assert flags.given["swap-space"] == "4"
    assert read_command(["--max-num-batched-tokens", "8k"]).max_num_batched_tokens == 8000
    assert read_command(["--max-num-seqs", "many"]).max_num_seqs is None


def test_the_servers_own_account_fills_in_what_the_command_line_leaves_open() -> None:
    info = {
        "vllm_config": {
            "scheduler_config": {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "enable_chunked_prefill": True},
            "parallel_config": {"tensor_parallel_size": 2, "data_parallel_size": True},
            "cache_config": {"gpu_memory_utilization": 0.9},
        }
    }
    told = read_server_info(info)
    assert told == ServeFlags(256, 2048, 2, None, True, 0.9)
    both = read_command(["--max-num-seqs", "64"]).over(told)
    assert (both.max_num_seqs, both.max_num_batched_tokens) == (64, 2048)
    assert read_server_info("nonsense") == ServeFlags()
