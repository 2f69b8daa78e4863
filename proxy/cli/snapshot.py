"""``kvgate snapshot``: everything about a running proxy that a ticket needs, in one file, without content and without keys."""

import argparse
import gzip
import sys
from pathlib import Path

import msgspec

from proxy.cli.admin_call import ADMIN_URL, AdminCallError, call
from proxy.cli.reading import base_url
from proxy.config.settings import SettingsError
from proxy.wire.log_text import json_plain

ENDING = ".json.gz"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "admin",
        nargs="?",
        type=base_url,
        default=ADMIN_URL,
        metavar="URL",
        help=f"admin port of the proxy (default: {ADMIN_URL})",
    )
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="FILE", help=f"the file to write, new; its name ends in {ENDING}"
    )
    parser.add_argument(
        "--tenant-names", action="store_true", help="leave tenants their names (default: a hash in place of each)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Ask and write; 1 when there was nothing to be had."""
    out: Path = arguments.out
    if not out.name.endswith(ENDING):
        raise SettingsError([f"--out: got {out}; allowed a name that ends in {ENDING}; because it is compressed JSON"])
    if out.exists():
        raise SettingsError([f"--out: {out} is there already"])
    query = {"tenant_names": "1"} if arguments.tenant_names else {}
    try:
        told = call("GET", arguments.admin, "/admin/snapshot", {}, query=query)
    except AdminCallError as error:
        print(f"kvgate snapshot: {error}", file=sys.stderr)
        return 1
    try:
        with out.open("xb") as file:
            file.write(gzip.compress(json_plain(msgspec.json.encode(told))))
    except OSError as error:
        raise SettingsError([f"--out: {out} cannot be written: {error.strerror}"]) from error
    names = "as they are" if arguments.tenant_names else "hashed"
    print(
        f"{out}: {out.stat().st_size} bytes; {len(told['decisions'])} decisions, {len(told['open'])} open requests,"
        f" {len(told['leases'])} leases, {len(told['replicas'])} replicas; tenants {names}, no content, no keys"
    )
    return 0
