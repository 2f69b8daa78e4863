"""``kvgate serve``: read flags, environment and policy, then run the proxy."""

import argparse
import os
import sys

from proxy.config.policy_file import read, review
from proxy.config.settings import ADMIN_HOST, HOST, VARIABLES, LogFormat, LogLevel, policy_file, read_settings, unread_variables

# Flag, its placeholder, and its help. Values are read by config.settings, which words the errors for flags and variables alike.
FLAGS = (
    ("replica", "URL", "vLLM servers to forward to. They replace the policy's list"),
    ("policy", "FILE", "the policy file (default: the shipped policies/default.yaml)"),
    ("host", "ADDRESS", f"where clients are listened to (default: {HOST})"),
    ("port", "PORT", "the port for clients (default: 8080)"),
    ("admin-host", "ADDRESS", f"where /metrics, /health, /ready and the switches are served (default: {ADMIN_HOST})"),
    ("admin-port", "PORT", "the port for those (default: 8081)"),
    (
        "admin-token-file",
        "FILE",
        "holds the token that changes under /admin ask for; KVGATE_ADMIN_TOKEN may hold the token itself (default: no changes)",
    ),
    ("tokenizer", "DIR|NAME", "the model's tokenizer, a folder or a name (default: as each replica's /v1/models tells)"),
    ("redis", "URL", "the store that all proxies before the same replicas share (default: none, this is the only one)"),
    (
        "workers",
        "N",
        "processes; more than 1 needs --redis. Each has an admin port of its own, from --admin-port on (default: 1)",
    ),
    ("kv-blocks", "N", "num_gpu_blocks of every replica, for replicas that run with --disable-log-stats"),
    ("log-level", "LEVEL", f"one of {', '.join(LogLevel)} (default: info)"),
    ("log-format", "FORMAT", f"one of {', '.join(LogFormat)} (default: console at a terminal, else json)"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags. None stands for a flag that was not given."""
    for name, placeholder, explanation in FLAGS:
        text = f"{explanation} [{VARIABLES[name.replace('-', '_')]}]"
        if name == "replica":
            parser.add_argument("--replica", action="extend", nargs="+", metavar=placeholder, help=text)
        else:
            parser.add_argument(f"--{name}", metavar=placeholder, help=text)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop. Raises SettingsError and PolicyError before anything is opened."""
    settings = read_settings(vars(arguments), os.environ)
    for sentence in unread_variables(os.environ):
        print(f"kvgate serve: warning: {sentence}", file=sys.stderr)
    file = policy_file(settings)
    for warning in review(read(file), str(file)).warnings:
        print(f"kvgate serve: {warning}", file=sys.stderr)
    from proxy.app import run_serve  # noqa: PLC0415  the web server is loaded once it is certain to be needed

    return run_serve(settings)
