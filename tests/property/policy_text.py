"""A policy file that says nearly everything: the shipped default and, beside it, the keys that have none. One key to a line."""

import re

from proxy.config.policy_file import default_path

KEY_A, KEY_B = "a" * 64, "b" * 64


def _beside(text: str, section: str, *lines: str) -> str:
    """Return the text with lines added below a top-level key."""
    return text.replace(f"{section}:\n", "\n".join((f"{section}:", *(f"  {line}" for line in lines))) + "\n", 1)


def _full() -> str:
    shipped = (
        "\n".join(line for line in re.sub(r" *#.*", "", default_path().read_text("utf-8")).splitlines() if line.strip()) + "\n"
    )
    shipped = shipped.replace("from: [header, api_key, user]", "from: [header, api_key, user, jwt]").replace(
        "auth: pass", "auth: require"
    )
    return _beside(shipped, "tenants", *_TENANTS.splitlines()) + _REST


_TENANTS = f"""\
jwt_claim: team
weights:
  zoo: 2
list:
  acme:
    weight: 2
    priority: 1
    requests_per_s: 5
    tokens_per_min: 60000
    burst: 20s
    kv_share_max: 0.5
    kv_share_min: 0.1
    key_sha256: {KEY_A}
  bolt:
    kv_share_min: 0.2
others:
  weight: 0.5
  priority: -1
  requests_per_s: 2.5
  tokens_per_min: 6000
  burst: 10s
  kv_share_max: 0.25"""
_REST = f"""\
trusted_callers: [10.0.0.0/8, "::1"]
passthrough:
  allow: [/sleep, /wake_up]
tokenizer: org/model-7b
discovery:
  dns:
    name: vllm.internal
    port: 8000
    every: 5s
  scheme: https
  replica:
    kv_blocks: 27000
    block_size: 16
    max_num_seqs: 256
    api_key_env: VLLM_KEY
    headers:
      x-zone: b
replicas:
  - url: http://10.0.0.5:8000
    name: a
    kv_blocks: 27000
    block_size: 16
    max_num_seqs: 256
    api_key_env: VLLM_KEY
    headers:
      x-zone: a
    kv_events: tcp://10.0.0.5:5557
  - url: https://b.example/llm
    api_key_file: /run/secrets/b
classes:
  - name: chat
    match:
      model: llama-*
      path: /v1/chat/*
      headers:
        x-class: chat*
      tenant: ac*
      key_sha256: [{KEY_A}, {KEY_B}]
      stream: true
      lora: tuned-*
      prompt_tokens:
        min: 10
        max: 8000
    priority: 10
    weight: 2
    deadline: 10s
    ttft: 2s
    tpot: 50ms
    queue:
      requests_max: 100
      tokens_max: 400000
      wait_max: 20s
    when_saturated: [queue, degrade, reroute, shed]
    degrade:
      max_tokens_min: 256
    fallbacks:
      - model: llama-small
      - url: https://api.example/v1
        api_key_env: OUTSIDE_KEY
      - url: https://other.example
        api_key_file: /run/secrets/other
  - name: bulk
    match:
      path: /v1/completions
    priority: -10
"""
FULL = _full()
