"""``kvgate explain``: which class, tenant, pool and limits a request gets under a policy, and why."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from ipaddress import ip_address
from math import ceil
from pathlib import Path

from proxy.advise.explanation import Asked, ClassSeen, Explanation, Rule, explain
from proxy.cli.reading import scalar
from proxy.config.faults import quoted
from proxy.config.policy_file import default_path, parse, read
from proxy.config.scalars import integer
from proxy.config.settings import SettingsError
from proxy.config.written import written
from proxy.core.outcome import Mode
from proxy.wire.call import Call
from proxy.wire.openai import UnreadableCallError
from proxy.wire.read_call import CALL_ROUTES, read_call

BYTES_PER_TOKEN = 4  # of English text; what serves counts exactly
MARKS = {"chosen": "->", "no match": "  ", "not asked": "  "}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("file", type=Path, metavar="FILE", help="the policy")
    parser.add_argument(
        "--request", type=Path, required=True, metavar="BODY", help="the request's JSON body; - reads it from stdin"
    )
    parser.add_argument(
        "--header", action="append", default=[], type=_header, metavar="'NAME: VALUE'", help="a header it has; may be given again"
    )
    parser.add_argument("--path", default="/v1/chat/completions", metavar="PATH", help="where it is sent (default: %(default)s)")
    parser.add_argument("--caller", type=_address, metavar="IP", help="the address it comes from (default: one that is trusted)")
    parser.add_argument(
        "--prompt-tokens", type=scalar(integer(0, 2**31)), metavar="N", help="length of the prompt (default: a token for 4 bytes)"
    )
    parser.add_argument("--lora", action="store_true", help="the model it names is a LoRA adapter")
    parser.add_argument("--json", action="store_true", help="tell it as one JSON object on stdout")


def run(arguments: argparse.Namespace) -> int:
    """Explain; a policy that is not good, and a body that cannot be read, are told as faults with exit code 2."""
    text = read(arguments.file)
    policy = parse(text, str(arguments.file))
    call = _call(arguments.path, arguments.request)
    counted = arguments.prompt_tokens is not None
    tokens = int(arguments.prompt_tokens) if counted else ceil(call.prompt_bytes / BYTES_PER_TOKEN)
    asked = Asked(arguments.path, dict(arguments.header), call, arguments.caller, tokens, is_adapter=arguments.lora)
    found = explain(policy, asked, written(text), written(read(default_path())))
    print(
        json.dumps(asdict(found), indent=2)
        if arguments.json
        else "\n".join(_lines(found, arguments.file, f"{'' if counted else 'about '}{tokens}"))
    )
    return 0


def _address(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"got {quoted(text)}; allowed an IP address") from error


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"got {quoted(text)}; allowed 'NAME: VALUE'")
    return name.strip().lower(), value.strip()


def _call(path: str, body: Path) -> Call:
    """Read the request. Raises SettingsError."""
    if path not in CALL_ROUTES:
        known = ", ".join(sorted(CALL_ROUTES))
        raise SettingsError(
            [f"--path: got {quoted(path)}; it takes no KV and is passed on untouched: only {known} have a class and limits"]
        )
    try:
        raw = sys.stdin.buffer.read() if str(body) == "-" else body.read_bytes()
    except OSError as error:
        reason = (error.strerror or "it cannot be read").lower()
        raise SettingsError([f"--request: {body} cannot be opened ({reason})"]) from error
    try:
        return read_call(CALL_ROUTES[path], raw)
    except UnreadableCallError as error:
        because = "such a request is passed on for the engine to refuse, without a class or limits"
        raise SettingsError([f"--request: {body} is no body for {path} ({error}); {because}"]) from error


# ---- for people


def _lines(found: Explanation, file: Path, tokens: str) -> Iterator[str]:
    output = (
        "to the end of the context" if found.output_tokens_max is None else f"at most {found.output_tokens_max} output tokens"
    )
    copies = f", {found.copies} answers" if found.copies > 1 else ""
    stream = ", streamed" if found.stream else ""
    yield f"request   POST {found.path}, model {found.model or 'not named'}{stream}, {tokens} prompt tokens, {output}{copies}"
    ratio = ": its tenant is not among the share that enforce_ratio enforces" if found.mode == Mode.ENFORCE else ""
    yield f"mode      {found.mode}, {'so it may be held and refused' if found.enforced else f'so it is neither held nor refused{ratio}'}"
    if found.key_known is not None:
        yield f"key       {'known' if found.key_known else 'unknown: auth: require answers 401, and nothing below happens'}"
    yield ""
    yield "class     the first that matches"
    width = max(len(seen.name) for seen in found.classes)
    for number, seen in enumerate(found.classes, start=1):
        place = f"{file}:{seen.line}" if seen.line else "built in"
        yield f"  {MARKS[seen.verdict]} {number:>3}  {seen.name:<{width}}  {_why(seen, found.traffic_class)}  ({place})"
        if seen.verdict != "not asked":
            yield from (f"          {'':<{width}}  {_rule(rule)}" for rule in seen.rules)
    yield ""
    yield f"tenant    {found.tenant}"
    named = False
    for source in found.sources:
        said = "names nobody" if source.names is None else f"names {source.names}"
        yield f"  {'->' if source.names is not None and not named else '  '} {source.source}: {said}{' (not asked)' if named else ''}"
        named = named or source.names is not None
    yield ""
    told = (*found.replicas, *(("those that discovery tells of",) if found.discovered else ()))
    known = ", ".join(told) or "none in the file: those of --replica or KVGATE_REPLICAS"
    yield f"pool      the replicas that serve {found.model or 'the default model'}, as each tells when it is probed, of: {known}"
    yield f"waits     at most {found.wait_s_max:g} s, because of {found.wait_because}"
    yield ""
    yield "limits"
    keys = max(len(limit.key) for limit in found.limits)
    values = max(len(limit.value) for limit in found.limits)
    for limit in found.limits:
        yield f"     {limit.key:<{keys}}  {limit.value:<{values}}  {f'{file}:{limit.line}' if limit.line else 'default'}"


def _why(seen: ClassSeen, chosen: str) -> str:
    if seen.verdict == "not asked":
        return f"not asked: {chosen} matched before"
    return f"{seen.verdict}{'' if seen.rules else ': it takes everything'}"


def _rule(rule: Rule) -> str:
    has = "the request has none" if rule.has is None else f"the request has {quoted(rule.has)}"
    return f"{'holds ' if rule.held else 'fails '} {rule.key} takes {quoted(rule.takes)}; {has}"
