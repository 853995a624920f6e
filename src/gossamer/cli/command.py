"""Commands and their arguments, declared without importing the code that runs them.

A command is a function that adds arguments to a parser. Its docstring is the command's help, and its first line appears
in `gossamer --help`. The code is named as `module:function`, and imported when the command is called.
"""

import argparse
import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from gossamer.errors import InputError, unknown

Arguments = Callable[["Parser"], None]
DATA_DIR = "folder with data files (default: $GOSSAMER_DATA, the cache)"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are InputErrors."""

    def error(self, message: str) -> NoReturn:
        """Raise an InputError; argparse would print its usage and exit."""
        raise InputError(f"{message[:1].upper()}{message[1:].rstrip('.')}; see `{self.prog} --help`.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and not action.option_strings and value not in action.choices:
            raise unknown(str(action.metavar).lower(), value, action.choices)
        super()._check_value(action, value)


@dataclass(frozen=True)
class Command:
    """A command, or a group of commands."""

    name: str
    arguments: Arguments
    call: str | None = None
    """`module:function` of its code; None for a group."""
    examples: str = ""

    def add_to(self, commands: Any) -> None:
        """Add this command to a parser's subparsers."""
        about = inspect.getdoc(self.arguments) or ""
        parser = commands.add_parser(
            self.name,
            help=about.split("\n")[0].rstrip("."),
            description=about,
            epilog=f"Examples:\n{self.examples}" if self.examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.arguments(parser)
        if self.call is not None:
            parser.set_defaults(call=self.call)


def command(name: str, call: str | None, *examples: str) -> Callable[[Arguments], Command]:
    """Decorate a function that adds the arguments of a command, and whose docstring is its help."""
    return lambda arguments: Command(name, arguments, call, "\n".join(f"  {example}" for example in examples))


def add_commands(parser: Parser, commands: Iterable[Command]) -> None:
    """Add commands to a parser, which then requires one of them."""
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    for one in commands:
        one.add_to(kinds)


def call(options: argparse.Namespace) -> int:
    """Import and run the code of the chosen command."""
    module, function = options.call.split(":")
    code: int = getattr(importlib.import_module(module), function)(options)
    return code


def add_output(parser: Parser, default: str) -> None:
    """Add the options for the output folder, JSON and progress."""
    parser.add_argument("-o", "--output", metavar="DIR", help=f"folder for records and figure (default: {default})")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def add_experiment(parser: Parser, devices: str, checkpoints: str) -> None:
    """Add the options that `run` and `launch` have in common."""
    parser.add_argument("spec", metavar="SPEC", help="a TOML file, or the name of a shipped spec such as figure1")
    add_output(parser, "runs/ and the spec's file name")
    parser.add_argument("--data-dir", metavar="DIR", help=DATA_DIR)
    parser.add_argument("--device", help=f"{devices} (default: the spec's, else cpu)")
    parser.add_argument("--target", type=float, metavar="NORM", help="also show the cost to reach this gradient norm")
    parser.add_argument("--force", action="store_true", help="replace what an earlier run left in the output folder")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run in the output folder")
    parser.add_argument(
        "--checkpoint-every", type=int, metavar="K", help=f"rounds between checkpoints (default: {checkpoints})"
    )
