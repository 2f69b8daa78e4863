"""Our own recordings: JSON lines, one object per request, in any order of time; kvgate's own begin with a line that says so.

    {"recording": 1, "version": "0.1", "mode": "enforce", "engines": [{"name": "a", "usable_blocks": 511, "block_size": 16}]}
    {"arrival_s": 0.25, "prompt_tokens": 812, "output_tokens": 97, "output_tokens_max": 1024, "tenant": "a", "priority": 0,
     "block_hashes": [8121, -77], "block_size": 16, "session": "s1", "streaming": true, "finish_reason": "stop"}
    {"recording_end": 1, "requests": 1, "engines": [{"name": "a", …, "preemptions": 3, "step": [0.01, 3e-05, 4e-05, 2e-08]}]}

``arrival_s``, ``prompt_tokens``, ``output_tokens`` and ``finish_reason`` must be there. ``block_hashes`` are prefix hashes of
``block_size`` prompt tokens each, as many from the front as are known. A field that is not one of these is an error: a mistyped name
would change a result unseen.

A request with a negative ``arrival_s`` was there when the recording began: it is played, and counted nowhere. Version 1 files of before
have neither those nor ``learned`` (what the proxy knew when it began) nor ``tenants``; both may be left out.

What became of a request (``outcome``, ``held``, ``queue_wait_s``, ``ttft_seen_s``) is for setting a replay against. ``finish_reason`` is
``shed`` where it was refused: nobody knows its length then. Content is in none of it: tenants, sessions and blocks are names by a salt
that is thrown away.
"""

from typing import Annotated, Literal

import msgspec

from proxy.core.learned import Learned

VERSION = 1
Tokens = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0)]


class RecordedEngine(msgspec.Struct, frozen=True, omit_defaults=True):
    """An engine. ``step`` is the learned step time: seconds, per prefill token, per decoding sequence, per KV token.

    ``scraped_s`` is when it was last measured, in seconds of the recording, and ``scrapes`` how often until then: its first and its last
    line tell when all others came.
    """

    name: str
    usable_blocks: Tokens
    block_size: Tokens
    context_tokens: Tokens
    sequences_max: int | None = None
    preemptions: int = 0  # while it was recorded
    step: tuple[float, float, float, float] | None = None
    scraped_s: float | None = None
    scrapes: int = 0


class RecordedTenant(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a tenant may take that the policy lists, under its name in the recording: keys of ``core.policy_tenants.TenantPolicy``."""

    name: str
    weight: float = 1.0
    priority: int = 0
    requests_per_s: float | None = None
    tokens_per_min: float | None = None
    burst_s: float = 10.0
    kv_share_max: float = 1.0
    kv_share_min: float = 0.0


class RecordingHead(msgspec.Struct, frozen=True, tag_field="recording", tag=VERSION, omit_defaults=True):
    """The first line."""

    version: str
    mode: str
    engines: tuple[RecordedEngine, ...]
    policy_digest: str = ""
    enforce_ratio: float = 1.0
    started: str = ""  # wall clock, for people
    learned: Learned | None = None  # what was known when it began, engines in the order of ``engines``
    tenants: tuple[RecordedTenant, ...] | None = None  # those listed in the policy


class RecordingEnd(msgspec.Struct, frozen=True, tag_field="recording_end", tag=VERSION, omit_defaults=True):
    """The last line; not there where the recording was cut off."""

    requests: int
    engines: tuple[RecordedEngine, ...]
    dropped: int = 0  # lines that the reader of the recording was too slow for


class RecordedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line. Tokens; ``arrival_s`` in seconds of any clock; higher ``priority`` first."""

    arrival_s: float
    prompt_tokens: Tokens
    output_tokens: Annotated[int, msgspec.Meta(ge=0)]
    finish_reason: Literal["stop", "tool_calls", "length", "abort", "error", "shed"]
    output_tokens_max: Tokens | None = None
    tenant: str = "default"
    priority: int = 0
    block_hashes: tuple[int, ...] = ()
    block_size: Tokens = 16
    session: str | None = None
    streaming: bool = True
    traffic_class: str = "default"
    weight: float = 1.0
    tools: bool = False
    copies: Tokens = 1
    client_wait_s: Seconds | None = None  # how long its client would wait for a place, where it said so
    outcome: str | None = None
    gate: str | None = None  # that refused it
    held: bool = False
    queue_wait_s: Seconds | None = None
    ttft_seen_s: Seconds | None = None
    total_s: Seconds | None = None
    replica: str | None = None
    would: Literal["hold", "shed"] | None = None  # what enforcing would have done to it

    @property
    def natural_tokens(self) -> int:
        """Where it would end by itself, as far as can be told."""
        if self.finish_reason == "length":
            return max(self.output_tokens, self.output_tokens_max or 0) + 1
        return max(1, self.output_tokens)
