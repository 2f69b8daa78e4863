"""``kvgate drain``: send nobody new to a replica, for a while. What runs there finishes."""

import argparse

from proxy.cli.admin_call import add_override_arguments, lasting_ask, switch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("replica", metavar="REPLICA", help="its name, as on /admin/replicas")
    add_override_arguments(parser, lasting=True)


def run(arguments: argparse.Namespace) -> int:
    """Drain it."""
    return switch(arguments, "POST", "/admin/drains", body={"replica": arguments.replica, **lasting_ask(arguments)})
