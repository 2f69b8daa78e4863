"""The ``kvgate`` command: one module per word, loaded when the word is used, so that ``check`` does not wait for a web server.

Each module has ``add_arguments(parser)`` and ``run(arguments) -> exit code``. What the user got wrong is told in one line for each
fault on stderr, with exit code 2.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from proxy import __version__
from proxy.cli.commands import COMMANDS, CommandModule
from proxy.config.faults import PolicyError, did_you_mean, quoted
from proxy.config.settings import SettingsError

USAGE_ERROR = 2
PIPE_CLOSED = 141  # as a shell tells it of a program that the signal ended


class _Parser(argparse.ArgumentParser):
    """Tells a usage error in one line instead of behind a page of usage."""

    def error(self, message: str) -> NoReturn:
        """Print the line and exit with 2."""
        self.exit(USAGE_ERROR, f"{self.prog}: {message}; see {self.prog} --help\n")


def top_parser() -> argparse.ArgumentParser:
    """Return the parser of what stands before the command's word."""
    width = max(map(len, COMMANDS))
    words = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items())
    parser = _Parser(
        prog="kvgate",
        usage="kvgate COMMAND [flags]",
        description="The admission proxy that keeps vLLM from preempting.",
        epilog=f"commands (`kvgate COMMAND --help` tells more):\n{words}\n\nexample:\n  {COMMANDS['serve'].example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kvgate {__version__}")
    return parser


def command_parser(name: str) -> tuple[argparse.ArgumentParser, CommandModule]:
    """Return the parser of a command and its module."""
    command = COMMANDS[name]
    module = command.load()
    parser = _Parser(
        prog=f"kvgate {name}",
        description=command.summary[0].upper() + command.summary[1:] + ".",
        epilog=f"example:\n  {command.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    return parser, module


def _at_dashes(words: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """What stands before ``--`` and what behind it, which is an engine's command line; None without one."""
    if "--" not in words:
        return list(words), None
    place = list(words).index("--")
    return list(words[:place]), list(words[place + 1 :])


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    0 done, 1 done and found wanting, 2 asked wrongly, 130 interrupted, 141 not read to the end.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0].startswith("-"):
        parser = top_parser()
        parser.parse_args(words)
        parser.print_help(sys.stderr)
        return USAGE_ERROR
    if words[0] not in COMMANDS:
        hint = did_you_mean(words[0], COMMANDS)
        top_parser().error(f"no command {quoted(words[0])}{hint}; the commands are {', '.join(COMMANDS)}")
    command, module = command_parser(words[0])
    own, engine_command = _at_dashes(words[1:])
    arguments = command.parse_args(own)
    if engine_command is not None:
        if not hasattr(arguments, "engine_command"):
            command.error("takes no command line behind --")
        arguments.engine_command = engine_command
    try:
        code = module.run(arguments)
        sys.stdout.flush()
    except (SettingsError, PolicyError) as error:
        for line in str(error).splitlines():
            print(f"kvgate {words[0]}: {line}", file=sys.stderr)
        return USAGE_ERROR
    except BrokenPipeError:  # the reader has seen enough, as `| head` does; what is left in the buffer goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return 130
    return code
