"""Calls of running proxies' admin ports, for the commands that ask them something or change it."""

import argparse
import getpass
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from proxy.cli.reading import base_url, scalar
from proxy.config.admin_token import VARIABLE, AdminTokenError, admin_token
from proxy.config.scalars import duration
from proxy.config.settings import SettingsError

ADMIN_URL = "http://127.0.0.1:8081"
TIMEOUT_S = 10.0
LASTING = duration("1s", "168h")


class AdminCallError(Exception):
    """A proxy did not do what it was asked; the message says why."""


def add_admin_arguments(parser: argparse.ArgumentParser) -> None:
    """Which proxies, and the token."""
    parser.add_argument(
        "--admin", nargs="+", type=base_url, default=[ADMIN_URL], metavar="URL", help=f"admin ports of proxies (default: {ADMIN_URL})"
    )  # fmt: skip
    parser.add_argument(
        "--admin-token-file", type=Path, metavar="FILE", help=f"holds their admin token (default: what {VARIABLE} holds)"
    )


def add_override_arguments(parser: argparse.ArgumentParser, *, lasting: bool) -> None:
    """Who is told, for how long, and why. Without ``lasting`` it has no end of its own."""
    if lasting:
        parser.add_argument(
            "--for", dest="for_s", type=scalar(LASTING), metavar="TIME", help="how long it holds, as 30m or 1h, up to 168h"
        )
    parser.add_argument(
        "--reason", default="", metavar="TEXT", help="why: it stands in the log and wherever the override is shown"
    )
    parser.add_argument(
        "--all", action="store_true", help="tell all proxies of the pool, through their store; later ones obey too"
    )
    add_admin_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print what each proxy answers as one JSON object on stdout")


def lasting_ask(arguments: argparse.Namespace) -> dict[str, Any]:
    """What every override says. Raises SettingsError where it says too little."""
    missing = [
        flag for flag, value in (("--for TIME", arguments.for_s), ("--reason TEXT", arguments.reason.strip())) if not value
    ]
    if missing:
        raise SettingsError(
            [f"needs {' and '.join(missing)}: who finds it at night has to know when it ends and why it is there"]
        )
    return {"for_s": arguments.for_s, "reason": arguments.reason, "by": caller(), "all": arguments.all}


def caller() -> str:
    """Who runs the command, as far as the machine knows."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user need not have a name
        return f"uid {os.getuid()}"


def token_headers(arguments: argparse.Namespace) -> dict[str, str]:
    """The header that carries the admin token; none where there is no token. Raises SettingsError for one that cannot be used."""
    try:
        token = admin_token(arguments.admin_token_file, os.environ)
    except AdminTokenError as error:
        raise SettingsError([str(error)]) from error
    return {} if token is None else {"authorization": f"Bearer {token}"}


def call(
    method: str, url: str, path: str, headers: Mapping[str, str], *, body: object = None, query: Mapping[str, str] | None = None
) -> Any:
    """Ask one proxy; return its JSON. Raises AdminCallError."""
    try:
        reply = httpx.request(method, url + path, headers=dict(headers), json=body, params=query, timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        raise AdminCallError(f"{url}: {error or type(error).__name__}; is this the admin port of a running kvgate?") from error
    try:
        answer = reply.json()
    except ValueError as error:
        raise AdminCallError(f"{url}: status {reply.status_code} and no JSON; is this the admin port of a kvgate?") from error
    if reply.is_success:
        return answer
    message = answer.get("error", {}).get("message") if isinstance(answer, dict) else None
    raise AdminCallError(f"{url}: {message or f'status {reply.status_code}'}")


def switch(
    arguments: argparse.Namespace, method: str, path: str, *, body: object = None, query: Mapping[str, str] | None = None
) -> int:
    """Ask every proxy that was named and tell what each says; 1 when one of them did not do it, or could not tell the others."""
    headers = token_headers(arguments)
    answers: dict[str, Any] = {}
    faults: list[str] = []
    for url in arguments.admin:
        try:
            answers[url] = call(method, url, path, headers, body=body, query=query)
        except AdminCallError as error:
            faults.append(str(error))
            continue
        if "fault" in answers[url]:
            faults.append(f"{url}: done there, the other proxies were not told: {answers[url]['fault']}")
    if arguments.json:
        print(json.dumps({"proxies": answers, "faults": faults}, indent=2))
    else:
        for url, answer in answers.items():
            print("\n".join(shown(url, answer, everywhere=arguments.all)))
    for fault in faults:
        print(f"kvgate: {fault}", file=sys.stderr)
    return 1 if faults else 0


def shown(url: str, state: Mapping[str, Any], *, everywhere: bool) -> Sequence[str]:
    """What rules at a proxy, in lines."""
    said = state["override"]
    policy = f"the policy file says {state['policy_mode']}"
    lines = [f"{url}: mode {state['mode']}: {policy if said is None else f'{_said(said)}; {policy}'}"]
    lines += [f"{url}: replica {replica} drains: {_said(one)}" for replica, one in state["drains"].items()]
    if state["proxies"] > 1 and not everywhere:
        lines.append(f"{url}: one of {state['proxies']} proxies, asked alone; --all reaches the others")
    return lines


def _said(one: Mapping[str, Any]) -> str:
    left_s = round(one["left_s"])
    hours, minutes = left_s // 3600, left_s % 3600 // 60
    left = f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{left_s % 60:02d}s"
    return f"by hand for {left} more at {'all proxies' if one['all'] else 'this proxy'}, by {one['by']}: {one['reason']}"
