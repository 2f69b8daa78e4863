"""The same request to an engine and to kvgate in front of it, and whether the answers are the same.

Status, headers and body must be equal, byte for byte; of a stream, frame by frame. Left out are headers of one hop, ``date``, and those
that kvgate adds (``x-request-id``, ``x-kvgate-*``); masked are the times of creation and the ids that the engine draws anew for each
answer. Both requests carry the same ``x-request-id``, so ids made of it must be equal too. A redirect must lead to the same place: the
engine names the host that it was asked by, kvgate, asked by another, leaves it out. Of a stream with several choices each
choice's frames are compared: how they are interleaved is the engine's chance.

``python -m tests.vllm.transparent --direct URL --through URL [--data DIR] [--out FILE]`` prints the table for any engine.
"""

import argparse
import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from urllib.parse import urlsplit

from proxy.wire.routes import RouteKind, in_table, kind_of
from tests.support.upstream_servers import dechunk

ANSWER_S_MAX = 60.0
HOST = "engine.test"
TRIES = 8  # an engine that is busy puts several tokens into one event of a stream; which ones is chance
ONE_HOP = {"connection", "keep-alive", "transfer-encoding", "date"}
OF_CHOICE = re.compile(rb'data: .*"choices":\[\{"index":(\d+)')
MASKS = (
    (re.compile(rb'("created(?:_at)?":\s*)[0-9.]+'), rb"\1#"),
    (re.compile(rb'("completed_at":\s*)[0-9.]+'), rb"\1#"),
    (re.compile(rb"\b(resp|msg|rs|fc|call|item|toolu|modelperm|chatcmpl-tool|scoring|genscore)([-_])[0-9a-f]{8,}\b"), rb"\1\2#"),
    (re.compile(rb"\bcall_[A-Za-z0-9]{20,}\b"), rb"call_#"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One request. ``route`` is the path as OpenAPI writes it, under which the table counts it."""

    route: str
    method: str
    target: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    chunked: bool = False
    what: str = ""

    @property
    def kind(self) -> RouteKind:
        """What kvgate does with it."""
        return kind_of(self.method, self.route)

    def encode(self, host: str, request_id: str) -> bytes:
        """The bytes on the wire."""
        upgrade = any(name == "upgrade" for name, _ in self.headers)
        fields = [("host", host), ("connection", "Upgrade" if upgrade else "close"), ("x-request-id", request_id), *self.headers]
        body = self.body
        if self.chunked:
            fields.append(("transfer-encoding", "chunked"))
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:]) if part) + b"0\r\n\r\n"
        elif body or self.method in {"POST", "PUT", "PATCH"}:
            fields.append(("content-length", str(len(body))))
        head = "".join(f"{name}: {value}\r\n" for name, value in fields)
        return f"{self.method} {self.target} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, as far as it must be the same."""

    status: int
    headers: tuple[tuple[str, str], ...]
    frames: tuple[bytes, ...]
    whole: bool


async def ask(url: str, case: Case, request_id: str) -> Answer:
    """Send a case and read the answer to its end."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(case.encode(HOST, request_id))
        async with asyncio.timeout(ANSWER_S_MAX):
            raw = await reader.read()
    finally:
        writer.transport.abort()
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
    whole = True
    if ("transfer-encoding", "chunked") in fields and case.method != "HEAD":
        body, whole = dechunk(body)
    fields = [(name, value.removeprefix(f"http://{HOST}") if name == "location" else value) for name, value in fields]
    kept = sorted(
        pair for pair in fields if pair[0] not in ONE_HOP and pair[0] != "x-request-id" and not pair[0].startswith("x-kvgate-")
    )
    return Answer(int(first.split()[1]), tuple(kept), by_choice(masked(body).split(b"\n\n")), whole)


def masked(body: bytes) -> bytes:
    """The body without what is new in every answer."""
    for pattern, put in MASKS:
        body = pattern.sub(put, body)
    return body


def by_choice(frames: list[bytes]) -> tuple[bytes, ...]:
    """The frames in order, those of choices one choice after the other."""
    found = [OF_CHOICE.match(frame) for frame in frames]
    moved = iter(sorted((int(match[1]), place) for place, match in enumerate(found) if match))
    return tuple(frames[next(moved)[1]] if match else frame for frame, match in zip(frames, found, strict=True))


def difference(direct: Answer, through: Answer) -> str:
    """What differs, for people; "" for nothing."""
    if direct.status != through.status:
        return f"status {direct.status} became {through.status}: {b' '.join(through.frames)[:300]!r}"
    if direct.headers != through.headers:
        gone, new = set(direct.headers) - set(through.headers), set(through.headers) - set(direct.headers)
        return f"headers: without {sorted(gone)}, with {sorted(new)}"
    for index, (ours, theirs) in enumerate(zip_longest(through.frames, direct.frames)):
        if ours != theirs:
            return f"frame {index}: {theirs!r:.300} became {ours!r:.300}"
    return "" if direct.whole == through.whole else "cut off"


@dataclass(slots=True)
class Table:
    """Routes by kind, cases by whether they were the same."""

    kinds: dict[tuple[str, str], RouteKind] = field(default_factory=dict)
    same: Counter[str] = field(default_factory=Counter)
    cases: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    async def compare(self, direct_url: str, through_url: str, cases: Iterable[Case]) -> None:
        """Ask both for every case, one after the other."""
        for number, case in enumerate(cases):
            told = "not asked"
            for attempt in range(TRIES):
                request_id = f"same-{os.getpid()}-{number}-{attempt}"
                direct = await ask(direct_url, case, request_id)
                through = await ask(through_url, case, request_id)
                told = difference(direct, through)
                if not told:
                    break
            self.cases[case.route] += 1
            self.statuses[direct.status] += 1
            if told:
                self.differences.append(f"{case.method} {case.target[:100]} ({case.what}): {told}")
            else:
                self.same[case.route] += 1

    def __str__(self) -> str:
        """The table."""
        lines = ["| route | methods | kind | cases | the same |", "| --- | --- | --- | ---: | ---: |"]
        routes: dict[tuple[str, RouteKind], list[str]] = {}
        for (method, path), kind in sorted(self.kinds.items(), key=lambda item: (item[1], item[0][1], item[0][0])):
            routes.setdefault((path, kind), []).append(method)
        for (path, kind), methods in routes.items():
            counts = f"{self.cases[path]} | {self.same[path]}" if kind is RouteKind.SAME else "|"
            lines.append(f"| `{path}` | {', '.join(methods)} | {kind} | {counts} |")
        other = sorted(set(self.cases) - {path for _, path in self.kinds})
        lines += [f"| {path} | | {RouteKind.SAME} | {self.cases[path]} | {self.same[path]} |" for path in other]
        if not self.cases:
            return "\n".join(line.replace("| 0 | 0 |", "| | |") for line in lines)
        statuses = ", ".join(f"{status}: {count}" for status, count in sorted(self.statuses.items()))
        lines += ["", f"{self.same.total()} of {self.cases.total()} cases the same; answers by status: {statuses}"]
        return "\n".join([*lines, *(f"- {one}" for one in self.differences)])


async def served_routes(url: str) -> list[tuple[str, str]]:
    """Method and path of every route that the engine's own description names."""
    answer = await ask(url, Case("/openapi.json", "GET", "/openapi.json"), "routes")
    paths = json.loads(b"\n\n".join(answer.frames))["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def unknown_to_the_table(routes: Iterable[tuple[str, str]]) -> list[str]:
    """Routes that ``wire.routes`` does not name."""
    return [f"{method} {path}" for method, path in routes if not in_table(method, path)]


async def run(direct: str, through: str, data: Path | None, model: str) -> Table:
    """The whole suite."""
    from tests.vllm.transparent_cases import every_case

    table = Table()
    routes = await served_routes(direct)
    table.kinds = {(method, path): kind_of(method, path) for method, path in routes}
    await table.compare(direct, through, every_case(routes, model, data))
    return table


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--direct", required=True)
    parser.add_argument("--through", required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    shown = str(asyncio.run(run(args.direct, args.through, args.data, args.model)))
    print(shown)  # noqa: T201
    if args.out is not None:
        args.out.write_text(shown + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
