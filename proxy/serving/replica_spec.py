"""What a probe found becomes the gate's ``ReplicaSpec``:

- no block count anywhere: it cannot be budgeted, so it is only observed, and the report says what to set;
- several engines behind one URL: its metrics describe none of them, so it is only observed;
- no engine statistics: enforced on own accounting;
- several data-parallel engines: one spec each (``serving.ranks``).
"""

from proxy.core.policy import ReplicaPolicy
from proxy.core.replica import ReplicaFacts, ReplicaSpec
from proxy.core.units import usable_blocks
from proxy.wire.vllm_metrics import counts_null_block

BLOCK_SIZE_GUESS = 16  # vLLM's default on GPUs, for an engine that tells nothing
CONTEXT_TOKENS_GUESS = 8192


def spec_of(facts: ReplicaFacts, policy: ReplicaPolicy, name: str) -> ReplicaSpec:
    """What the gate is to know of a probed replica. Values of the policy win over what was found."""
    blocks = facts.kv_blocks_total  # the feed puts the policy's in where it has one
    usable = 0 if blocks is None else usable_blocks(blocks, facts.engines) * facts.engines
    return ReplicaSpec(
        name=name,
        models=facts.models,
        usable_blocks=usable,
        block_size=policy.block_size or facts.block_size or BLOCK_SIZE_GUESS,
        context_tokens_max=facts.context_tokens_max or CONTEXT_TOKENS_GUESS,
        sequences_max=policy.sequences_max or facts.sequences_max,
        enforced=usable > 0 and not facts.several_engines_behind,
        engines=facts.engines,
        prefix_caching=facts.prefix_caching,
        null_block_used=counts_null_block(facts.version),
        kv_layout=facts.kv_layout,
    )
