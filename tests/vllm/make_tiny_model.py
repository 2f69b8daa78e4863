"""Build a tiny llama of random weights around a tokenizer, for a real vLLM to serve.

    .kvgate/vllm/venv/bin/python tests/vllm/make_tiny_model.py --tokenizer proxy/sim/tokenizer --out DIR [--no-eos]

Random weights make noise, and that is what the tests want: the engine's block accounting and scheduling do not depend on what the
text says, and with ``--no-eos`` (or ``ignore_eos`` in a request) an output is exactly ``max_tokens`` long. The output head is untied
from the embeddings, because a tied one of random weights repeats the last token of the prompt for ever.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing here may ask a hub


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Build a tiny llama of random weights around a tokenizer.")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json and tokenizer_config.json")
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    parser.add_argument("--context-tokens", type=int, default=4096, help="max_position_embeddings (default: %(default)s)")
    parser.add_argument("--no-eos", action="store_true", help="leave eos out of generation_config: replies run to max_tokens")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default: %(default)s)")
    return parser.parse_args(argv)


def llama_config(tokenizer: Any, context_tokens: int) -> dict[str, Any]:
    """Return the smallest shape that vLLM's CPU attention takes: a head of 32, two layers, one KV head."""
    return {
        "vocab_size": -(-len(tokenizer) // 64) * 64,  # vLLM pads to 64 anyway
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": context_tokens,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def copy_tokenizer(source: Path, out: Path) -> None:
    """Copy the files as they are: saving a loaded tokenizer rewrites them, and the engine must count by kvgate's own bytes."""
    out.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        if (source / name).exists():
            shutil.copyfile(source / name, out / name)


def build(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the model folder and return what is in it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig

    copy_tokenizer(arguments.tokenizer, arguments.out)
    tokenizer = AutoTokenizer.from_pretrained(arguments.out)
    torch.manual_seed(arguments.seed)
    config = LlamaConfig(**llama_config(tokenizer, arguments.context_tokens))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=None if arguments.no_eos else tokenizer.eos_token_id,
    )
    model.save_pretrained(arguments.out)
    return {"out": str(arguments.out), "parameters": sum(p.numel() for p in model.parameters()), "vocabulary": len(tokenizer)}


def main(argv: list[str]) -> int:
    """Build and print one line of JSON."""
    facts = build(parse(argv))
    sys.stdout.write(json.dumps(facts) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
