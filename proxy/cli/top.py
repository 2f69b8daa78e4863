"""``kvgate top``: the live page in a terminal."""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from proxy.cli.admin_call import ADMIN_URL, AdminCallError, call
from proxy.cli.reading import base_url, scalar
from proxy.cli.top_frame import Ink, frame, joined
from proxy.config.scalars import duration
from proxy.wire.live_report import LiveReport

EVERY_S = 1.0
WIDTH_MIN = 72
NOT_HEARD = 1
SAMPLES_MAX = 20  # as far as rates look back
DECISIONS_MAX = 100
OTHER_SCREEN, THIS_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # with the cursor hidden, and back
HOME, LINE_END, REST = "\x1b[H", "\x1b[K", "\x1b[J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "url", nargs="?", type=base_url, default=ADMIN_URL, metavar="URL", help=f"a proxy's admin port (default: {ADMIN_URL})"
    )
    parser.add_argument("--once", action="store_true", help="print one picture and end, as where stdout is no terminal")
    parser.add_argument(
        "--every", type=scalar(duration("200ms", "1m")), default=EVERY_S, metavar="TIME", help="how often to look (default: 1s)"
    )
    parser.add_argument("--json", action="store_true", help="print one answer of /admin/live as JSON and end")


def run(arguments: argparse.Namespace) -> int:
    """Look until interrupted; 1 when the proxy did not answer."""
    try:
        if arguments.json:
            print(json.dumps(call("GET", arguments.url, "/admin/live", {}), indent=2))
            return 0
        if arguments.once or not sys.stdout.isatty():
            sys.stdout.write(joined(_picture(Looks(arguments.url).look())))
            return 0
        return _watch(Looks(arguments.url), arguments.every)
    except AdminCallError as error:
        print(f"kvgate top: {error}", file=sys.stderr)
        return NOT_HEARD


class Looks:
    """What one proxy told so far: every look asks only for what is new."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._last: LiveReport | None = None

    def look(self) -> LiveReport:
        """All that is known now. Raises AdminCallError."""
        last = self._last
        told = self._ask(last)
        if last is not None and told.run != last.run:  # it was started anew
            last, told = None, self._ask(None)
        if last is not None:
            decisions = {one.key: one for one in (*last.decisions, *told.decisions)}
            told.decisions = sorted(decisions.values(), key=lambda one: one.at_s)[-DECISIONS_MAX:]
            told.samples = [*last.samples, *told.samples][-SAMPLES_MAX:]
        self._last = told
        return told

    def _ask(self, last: LiveReport | None) -> LiveReport:
        seq = last.samples[-1].seq if last is not None and last.samples else 0
        query = {"samples_after": str(seq), "ended_after": str(0 if last is None else last.ended)}
        answer = call("GET", self._url, "/admin/live", {}, query=query)
        try:
            return msgspec.convert(answer, LiveReport)
        except msgspec.ValidationError as error:
            message = f"{self._url}: its answer cannot be read: {error}; is it a kvgate of this version?"
            raise AdminCallError(message) from error


def _watch(looks: Looks, every_s: float) -> int:
    with _other_screen():
        try:
            while True:
                try:
                    lines = _picture(looks.look())
                except AdminCallError as error:  # it may come back: what was seen last stays below
                    sys.stdout.write(f"{HOME}no answer: {error}{LINE_END}\n")
                else:
                    height = shutil.get_terminal_size().lines
                    sys.stdout.write(HOME + f"{LINE_END}\n".join(lines[: height - 1]) + LINE_END + REST)
                sys.stdout.flush()
                time.sleep(every_s)
        except KeyboardInterrupt:  # how one leaves
            return 0


@contextmanager
def _other_screen() -> Iterator[None]:
    sys.stdout.write(OTHER_SCREEN)
    try:
        yield
    finally:
        sys.stdout.write(THIS_SCREEN)
        sys.stdout.flush()


def _picture(report: LiveReport) -> list[str]:
    size = shutil.get_terminal_size((80, 40))
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return frame(report, columns=max(WIDTH_MIN, size.columns), lines=size.lines, ink=Ink(colour=coloured))
