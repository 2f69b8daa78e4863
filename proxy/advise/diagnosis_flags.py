"""Flags, metric names and old advice against the engine's version.

``FLAGS`` holds what changed between the versions that were read (0.4.2, 0.5.5, 0.6.6, 0.8.5, 0.9.2, 0.10.2, 0.11.2, 0.13, 0.16, 0.20, 0.24,
0.28 to 0.32): ``last`` is the newest of them with the flag, ``gone`` the oldest after it without. In between it is not known, and said so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from proxy.advise.finding import Finding
from proxy.advise.watch import ReplicaWatch

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class FlagHistory:
    """``since`` None: as long as was looked back. ``gone`` None: still there. ``never``: no version had it."""

    since: Version | None = None
    last: Version | None = None
    gone: Version | None = None
    never: bool = False
    instead: str = ""

    def told(self, flag: str, version: Version | None) -> str | None:
        """What is wrong with giving ``flag`` to that version; None: nothing known."""
        now = "this version" if version is None else f"vLLM {_text(version)}"
        if self.never:
            return f"--{flag} was never a flag of vLLM. {self.instead}"
        if self.gone and self.last and (version is None or version > self.last):
            sure = version is not None and version >= self.gone
            fate = "is gone" if sure else "may be gone"
            return f"--{flag} {fate} from {now} (last seen in {_text(self.last)}, not in {_text(self.gone)}). {self.instead}"
        if self.since and version is not None and version < self.since:
            return f"--{flag} is not yet in {now} (first seen in {_text(self.since)}). {self.instead}"
        return None


NO_SWAP = "V1 engines (0.8 and later) never swap to the CPU: a preempted request is computed again. Lower the load instead."
FLAGS: Mapping[str, FlagHistory] = {
    "swap-space": FlagHistory(last=(0, 16), gone=(0, 20), instead=NO_SWAP),
    "preemption-mode": FlagHistory(last=(0, 10), gone=(0, 16), instead=NO_SWAP),
    "metrics-port": FlagHistory(never=True, instead="/metrics is on the API port."),
    "num-scheduler-steps": FlagHistory(last=(0, 8), gone=(0, 10), instead="Async scheduling replaced it and is on by default."),
    "multi-step-stream-outputs": FlagHistory(last=(0, 8), gone=(0, 10), instead="Leave it out."),
    "use-v2-block-manager": FlagHistory(last=(0, 8), gone=(0, 10), instead="Leave it out."),
    "scheduler-delay-factor": FlagHistory(last=(0, 10), gone=(0, 16), instead="Leave it out."),
    "num-lookahead-slots": FlagHistory(last=(0, 10), gone=(0, 16), instead="Leave it out."),
    "disable-async-output-proc": FlagHistory(last=(0, 10), gone=(0, 16), instead="Leave it out."),
    "guided-decoding-backend": FlagHistory(last=(0, 10), gone=(0, 16), instead="Use --structured-outputs-config."),
    "max-seq-len-to-capture": FlagHistory(last=(0, 10), gone=(0, 16), instead="Leave it out."),
    "disable-log-requests": FlagHistory(last=(0, 16), gone=(0, 20), instead="Requests are not logged by default any more."),
    "max-num-partial-prefills": FlagHistory(last=(0, 24), gone=(0, 28), instead="Use --long-prefill-token-threshold."),
    "max-long-partial-prefills": FlagHistory(last=(0, 24), gone=(0, 28), instead="Use --long-prefill-token-threshold."),
    "kv-cache-memory-bytes": FlagHistory(since=(0, 10), instead="Use --gpu-memory-utilization."),
    "watermark": FlagHistory(since=(0, 24), instead="Lower --max-num-seqs."),
    "max-num-queued-reqs": FlagHistory(since=(0, 29), instead="Bound the queue in front, as kvgate does."),
    "max-num-queued-tokens": FlagHistory(since=(0, 29), instead="Bound the queue in front, as kvgate does."),
    "max-num-active-seqs": FlagHistory(since=(0, 31), instead="Use --max-num-seqs."),
}


def findings(replica: ReplicaWatch) -> Iterator[Finding]:
    """Flags of the command line given that this version does not take, and values that are too bold for any."""
    for flag in replica.flags.given:
        history = FLAGS.get(flag)
        told = history.told(flag, replica.version) if history else None
        if told:
            yield Finding(
                "flag_unknown", replica.url, "a flag that this engine does not have", f"--{flag} on the command line given", told,
                f"remove --{flag}", 0.5 if "may be" in told else 1.0, 2,
            )  # fmt: skip
    share = replica.flags.gpu_memory_utilization
    if share is not None and share > 0.95:
        yield Finding(
            "utilization_bold", replica.url, "nothing is left on the card", f"--gpu-memory-utilization {share:g}",
            "long prefills, NCCL buffers and other processes on the card need the rest: the next peak is an out-of-memory",
            "go back to 0.92 (today's default) to 0.95; for more throughput add replicas", 0.75, 2,
        )  # fmt: skip


def notes(replica: ReplicaWatch) -> Iterator[str]:
    """Names and habits that this version does not know any more, for whoever reads a guide or an old dashboard."""
    if replica.facts is None:
        return
    version = replica.version
    if version is None:
        yield f"{replica.url}: its version is not told; what depends on it is said with both"
    usage = replica.facts.usage_metric
    if usage == "vllm:gpu_cache_usage_perc" or (version is not None and version < (0, 9)):
        yield "vllm:gpu_cache_usage_perc is this version's name; from 0.9 on it is vllm:kv_cache_usage_perc, the old one is gone by 0.13"
    else:
        yield "KV usage is vllm:kv_cache_usage_perc (0 to 1); vllm:gpu_cache_usage_perc was deprecated in 0.9 and is gone by 0.13"
    yield "gpu_cache_usage_factor was never a metric, and --metrics-port never a flag: /metrics is on the API port"
    if version is None or version >= (0, 8):
        gone = FLAGS["swap-space"].told("swap-space", version)
        yield gone or f"--swap-space is still accepted and does nothing. {NO_SWAP}"
    yield (
        "256 to 512 for --max-num-batched-tokens is advice from before 0.8; today's default is 2048, 8192 on cards of 70 GiB and more"
        " (A100: 2048), 16384 from 160 GiB"
    )


def _text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
