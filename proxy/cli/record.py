"""``kvgate record``: write down what a running proxy is asked and what becomes of it, never the content, for ``kvgate simulate``."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import httpx

from proxy.cli.admin_call import ADMIN_URL, LASTING, token_headers
from proxy.cli.reading import base_url, scalar
from proxy.config.admin_token import VARIABLE
from proxy.config.scalars import size
from proxy.config.settings import SettingsError

FOR_S = 600.0
SIZE_MAX = 1024**3
CONNECT_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write, new; its name ends in .jsonl")
    parser.add_argument(
        "--for",
        dest="for_s",
        type=scalar(LASTING),
        default=FOR_S,
        metavar="TIME",
        help="how long to record, up to 168h (default: 10m)",
    )
    parser.add_argument(
        "--max-size",
        type=scalar(size("1KiB", "1024GiB")),
        default=SIZE_MAX,
        metavar="SIZE",
        help="end when the file is as large (default: 1GiB)",
    )
    parser.add_argument(
        "--admin", type=base_url, default=ADMIN_URL, metavar="URL", help=f"admin port of the proxy (default: {ADMIN_URL})"
    )
    parser.add_argument(
        "--admin-token-file", type=Path, metavar="FILE", help=f"holds its admin token (default: what {VARIABLE} holds)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Record until the time is over, the file is full, or Ctrl-C; 1 when there was nothing to be had."""
    if arguments.out.suffix != ".jsonl":
        raise SettingsError(
            [f"--out: got {arguments.out}; allowed a name that ends in .jsonl; because it tells kvgate simulate the format"]
        )
    headers = token_headers(arguments)
    try:
        with arguments.out.open("xb", buffering=0) as out:
            return _written(arguments, headers, out.write)
    except FileExistsError as error:
        raise SettingsError([f"--out: {arguments.out} is there already"]) from error
    except OSError as error:
        raise SettingsError([f"--out: {arguments.out} cannot be written: {error.strerror}"]) from error


def _written(arguments: argparse.Namespace, headers: dict[str, str], write: Callable[[bytes], int]) -> int:
    lines = written = 0
    ended = "the recording ended"
    try:
        timeout = httpx.Timeout(CONNECT_S, read=None)
        with httpx.stream(
            "GET", f"{arguments.admin}/admin/record", params={"for_s": arguments.for_s}, headers=headers, timeout=timeout
        ) as reply:
            if not reply.is_success:
                reply.read()
                print(f"kvgate record: {arguments.admin}: {_message(reply)}", file=sys.stderr)
                arguments.out.unlink()
                return 1
            for line in reply.iter_lines():
                written += write(line.encode() + b"\n")
                lines += 1
                if written >= arguments.max_size:
                    ended = "it is as large as --max-size allows"
                    break
    except KeyboardInterrupt:
        ended = "interrupted"
    except httpx.HTTPError as error:
        ended = f"the proxy is gone: {error or type(error).__name__}"
        if not lines:
            print(f"kvgate record: {arguments.admin}: {ended}", file=sys.stderr)
            arguments.out.unlink()
            return 1
    print(f"{arguments.out}: {lines} lines, {written} bytes; {ended}")
    return 0


def _message(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {reply.status_code}; is this the admin port of a kvgate?"
