"""``kvgate mode``: set the mode of running proxies by hand, for a while; or see which rules."""

import argparse

from proxy.cli.admin_call import add_override_arguments, caller, lasting_ask, switch
from proxy.config.settings import SettingsError
from proxy.core.outcome import Mode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("mode", nargs="?", choices=[mode.value for mode in Mode], help="the mode; without one, show what rules")
    parser.add_argument("--clear", action="store_true", help="take the mode set by hand back: the policy file rules again")
    add_override_arguments(parser, lasting=True)


def run(arguments: argparse.Namespace) -> int:
    """Set, clear or show."""
    if arguments.clear and arguments.mode is not None:
        raise SettingsError(
            [f"--clear: takes no mode, and got {arguments.mode}; because it gives the word back to the policy file"]
        )
    if arguments.clear:
        query = {"all": str(int(arguments.all)), "reason": arguments.reason, "by": caller()}
        return switch(arguments, "DELETE", "/admin/mode", query=query)
    if arguments.mode is None:
        return switch(arguments, "GET", "/admin/mode")
    return switch(arguments, "POST", "/admin/mode", body={"mode": arguments.mode, **lasting_ask(arguments)})
