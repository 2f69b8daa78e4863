"""Prints every route that vLLM's server can have, as JSON: its app is built with every flag and task on. Runs in vLLM's own Python.

No engine is started: building the app only mounts the routes.
"""

import json
import os
import sys
from typing import get_args

os.environ.update(VLLM_SERVER_DEV_MODE="1", VLLM_ALLOW_RUNTIME_LORA_UPDATING="1", VLLM_ENABLE_COHERE_API="1")

from vllm import tasks
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

FLAGS = ["--model", "none", "--enable-scale-out", "--enable-tokenizer-info-endpoint", "--enable-fault-tolerance"]


def main() -> None:
    """Print ``[[method, path], ...]``; a WebSocket's method is GET, a mounted app's is every one."""
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(FLAGS)
    found = []
    for task in (*get_args(tasks.SupportedTask), None):
        every = tuple(get_args(tasks.SupportedTask)) if task is None else (task,)
        for route in build_app(args, every).routes:
            methods = getattr(route, "methods", None) or {"GET"}
            found += [[method, route.path] for method in methods if method != "HEAD"]
    json.dump(sorted({tuple(one) for one in found}), sys.stdout)


main()
