"""The words of the ``kvgate`` command: for each what it does, an example, and how its module is loaded, once the word is used."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class CommandModule(Protocol):
    """What a command's module has."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Add the flags."""
        ...

    def run(self, arguments: argparse.Namespace, /) -> int:
        """Do it and return the exit code."""
        ...


@dataclass(frozen=True, slots=True)
class Command:
    """A word of the command line."""

    summary: str
    example: str
    load: Callable[[], CommandModule]


def _serve() -> CommandModule:
    from proxy.cli import serve  # noqa: PLC0415

    return serve


def _check() -> CommandModule:
    from proxy.cli import check  # noqa: PLC0415

    return check


def _explain() -> CommandModule:
    from proxy.cli import explain  # noqa: PLC0415

    return explain


def _demo() -> CommandModule:
    from proxy import demo  # noqa: PLC0415

    return demo


def _simulate() -> CommandModule:
    from proxy.cli import simulate  # noqa: PLC0415

    return simulate


def _plan() -> CommandModule:
    from proxy.cli import plan  # noqa: PLC0415

    return plan


def _doctor() -> CommandModule:
    from proxy.cli import doctor  # noqa: PLC0415

    return doctor


def _bench() -> CommandModule:
    from proxy.cli import bench  # noqa: PLC0415

    return bench


def _compare() -> CommandModule:
    from proxy.cli import compare  # noqa: PLC0415

    return compare


def _record() -> CommandModule:
    from proxy.cli import record  # noqa: PLC0415

    return record


def _report() -> CommandModule:
    from proxy.cli import report  # noqa: PLC0415

    return report


def _mode() -> CommandModule:
    from proxy.cli import mode  # noqa: PLC0415

    return mode


def _drain() -> CommandModule:
    from proxy.cli import drain  # noqa: PLC0415

    return drain


def _resume() -> CommandModule:
    from proxy.cli import resume  # noqa: PLC0415

    return resume


def _snapshot() -> CommandModule:
    from proxy.cli import snapshot  # noqa: PLC0415

    return snapshot


def _top() -> CommandModule:
    from proxy.cli import top  # noqa: PLC0415

    return top


def _mock_vllm() -> CommandModule:
    from proxy.sim import mock_server  # noqa: PLC0415

    return mock_server


COMMANDS = {
    "serve": Command(
        "stand in front of vLLM and admit what fits",
        "kvgate serve --replica http://10.0.0.5:8000 http://10.0.0.6:8000",
        _serve,
    ),
    "check": Command("tell everything that is wrong with policy files", "kvgate check policy.yaml", _check),
    "explain": Command(
        "which class, tenant and limits a request gets under a policy, and why",
        "kvgate explain policy.yaml --request body.json --header 'x-class: chat'",
        _explain,
    ),
    "demo": Command("the same load without and with kvgate, on two mock replicas", "kvgate demo", _demo),
    "simulate": Command(
        "try a policy on a workload in virtual time, beside what else one could do",
        "kvgate simulate --workload reasoning --load 1.3 --baseline passthrough,threshold:0.9,oracle",
        _simulate,
    ),
    "plan": Command(
        "how many KV blocks and sequences a card holds, and the flags to start vLLM with",
        "kvgate plan --layers 80 --kv-heads 8 --head-dim 128 --tp 4 --gpu-memory-gib 80 --weights-gib 36 --reserve-gib 6",
        _plan,
    ),
    "doctor": Command(
        "watch live servers and say what is wrong, why, and what to turn first",
        "kvgate doctor http://10.0.0.5:8000 http://10.0.0.6:8000 --watch 60s",
        _doctor,
    ),
    "bench": Command(
        "put a load on a server, measure both its sides, and write it down",
        "kvgate bench http://10.0.0.5:8000 --workload chat --rate 4 --duration 60s --slo ttft=2s,tpot=50ms --out before.json",
        _bench,
    ),
    "compare": Command(
        "before and after of two benchmark runs, with confidence, and what to try next",
        "kvgate compare before.json after.json --plot change.svg",
        _compare,
    ),
    "record": Command(
        "write down what a proxy is asked and what becomes of it, never the content",
        "kvgate record --for 10m --out tuesday.jsonl",
        _record,
    ),
    "report": Command(
        "what observing has shown, and whether the fleet is ready to be enforced",
        "kvgate report --since 24h",
        _report,
    ),
    "mode": Command(
        "set the mode of running proxies by hand, for a while",
        'kvgate mode off --for 1h --reason "TTFT doubled since the rollout" --all',
        _mode,
    ),
    "drain": Command(
        "send nobody new to a replica, for a while",
        'kvgate drain 10.0.0.5:8000 --for 30m --reason "driver update" --all',
        _drain,
    ),
    "resume": Command("send requests to a drained replica again", "kvgate resume 10.0.0.5:8000 --all", _resume),
    "snapshot": Command(
        "everything about a running proxy that a ticket needs, without content and keys",
        "kvgate snapshot -o ticket.json.gz",
        _snapshot,
    ),
    "top": Command(
        "watch a proxy in the terminal: replicas, queue, and every decision with its reason",
        "kvgate top http://127.0.0.1:8081",
        _top,
    ),
    "mock-vllm": Command(
        "serve vLLM's API from a model of its scheduler, without a GPU",
        "kvgate mock-vllm --port 8000",
        _mock_vllm,
    ),
}
