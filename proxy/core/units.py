"""Units. Tokens become blocks in one place, rounded up.

Formula: ``blocks(tokens) = ceil(tokens / block_size)`` (reference: vLLM keeps KV for whole blocks of ``block_size`` token slots).
Fails: never; a block size below one is our bug and asserts.
"""


def blocks_for_tokens(tokens: int, block_size: int) -> int:
    """KV blocks that hold ``tokens`` token slots, rounded up; zero tokens hold zero blocks."""
    assert block_size >= 1, block_size
    return -(-tokens // block_size)


def usable_blocks(num_gpu_blocks: int, engines: int) -> int:
    """Blocks one engine can hand out.

    ``num_gpu_blocks`` of ``vllm:cache_config_info`` is the sum over the engines of one server; one block of each engine is its
    null block.
    """
    assert engines >= 1, engines
    return max(0, num_gpu_blocks // engines - 1)
