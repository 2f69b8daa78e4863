"""``kvgate resume``: send requests to a replica again that was told to drain."""

import argparse

from proxy.cli.admin_call import add_override_arguments, caller, switch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("replica", metavar="REPLICA", help="its name, as on /admin/replicas")
    add_override_arguments(parser, lasting=False)


def run(arguments: argparse.Namespace) -> int:
    """Take the drain back."""
    query = {"replica": arguments.replica, "all": str(int(arguments.all)), "reason": arguments.reason, "by": caller()}
    return switch(arguments, "DELETE", "/admin/drains", query=query)
