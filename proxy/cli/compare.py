"""``kvgate compare``: before and after of one load, with confidence, and what to try next."""

import argparse
import json
from pathlib import Path

from proxy.advise.compare import Verdict, compare
from proxy.advise.result_file import BenchResult, ResultFileError, decode
from proxy.cli.compare_plot import SUFFIXES, write_plot
from proxy.cli.compare_report import as_dict, text
from proxy.config.settings import SettingsError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("before", type=Path, metavar="A.json", help="a result of kvgate bench")
    parser.add_argument("after", type=Path, metavar="B.json", help="another one; exit code 1 when it is worse, or mixed")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw both runs as .png or .svg (needs matplotlib: pip install 'kvgate[plot]')"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def run(arguments: argparse.Namespace) -> int:
    """Compare: 0 when the second run is better or no different, 1 when it is worse or mixed."""
    if arguments.plot is not None and arguments.plot.suffix not in SUFFIXES:
        raise SettingsError([f"--plot {arguments.plot}: must end in {' or '.join(SUFFIXES)}"])
    before, after = _read(arguments.before), _read(arguments.after)
    found = compare(before, after)
    if arguments.plot is not None:
        write_plot(before, after, arguments.plot)
    print(json.dumps(as_dict(before, after, found), indent=2) if arguments.json else text(before, after, found))
    return 1 if found.verdict in (Verdict.WORSE, Verdict.MIXED) else 0


def _read(path: Path) -> BenchResult:
    try:
        return decode(path.read_bytes(), str(path))
    except OSError as error:
        raise SettingsError([f"{path}: {error.strerror or error}; give two results of kvgate bench"]) from error
    except ResultFileError as error:
        raise SettingsError([str(error)]) from error
